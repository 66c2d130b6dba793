// Where other prompts are likely to part from one.
#include "engine/cache/sequence_memory.h"
#include "tests/check.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

constexpr int32_t kStart = kStubVocab - 2;  // special tokens of letters()
constexpr int32_t kEnd = kStubVocab - 1;

// Messages of these lengths, each between kStart, a role and a newline, and kEnd and a newline; then a response begins.
std::vector<int32_t> conversation(const std::vector<int>& lengths) {
  std::vector<int32_t> tokens;
  for (const int length : lengths) {
    tokens.insert(tokens.end(), {kStart, 1, 2});
    tokens.insert(tokens.end(), static_cast<size_t>(length), 3);
    tokens.insert(tokens.end(), {kEnd, 2});
  }
  tokens.insert(tokens.end(), {kStart, 4, 2});
  return tokens;
}

}  // namespace

TEST(a_prompt_forks_where_its_messages_begin) {
  CHECK(branch_points(conversation({20, 10, 30}), letters(), 16) == std::vector<int>({1, 26, 41}));
  CHECK(branch_points({}, letters(), 16).empty());
  CHECK(branch_points({1, 2, 3}, letters(), 16).empty());
}

TEST(a_prompt_forks_at_a_question_after_a_long_document) {
  const std::vector<int32_t> tokens = conversation({20, 200});
  const auto end = static_cast<int>(tokens.size());
  CHECK(branch_points(tokens, letters(), 16) == std::vector<int>({1, 26, end - 64, end - 32, end - 16}));
  CHECK(branch_points(std::vector<int32_t>(200, 3), letters(), 16) == std::vector<int>({136, 168, 184}));
}

TEST(of_a_long_conversation_the_first_and_the_last_forks_count) {
  const std::vector<int32_t> tokens = conversation(std::vector<int>(50, 20));
  const std::vector<int> points = branch_points(tokens, letters(), 16);
  CHECK_EQUAL(points.size(), static_cast<size_t>(kMaxBranchPoints));
  CHECK(std::vector<int>(points.begin(), points.begin() + 3) == std::vector<int>({1, 26, 1101}));
  CHECK_EQUAL(points.back(), 1226);
}

}  // namespace turbomind::testing
