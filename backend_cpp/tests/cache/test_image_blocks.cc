// Images that tokens look at by cross-attention, in the cache: driven step by step, with a memory that knows what was
// written where.
#include <algorithm>
#include <map>
#include <random>

#include "engine/schedule/scheduler.h"
#include "tests/cache/images.h"
#include "tests/cache_plans.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

constexpr int kBlockLen = 4;
constexpr int kRowsOfBlock = 8;
constexpr int kBlocks = 17;
constexpr int kStepTokens = 10;

std::shared_ptr<Sequence> make_sequence(RequestId id, std::vector<int32_t> prompt, std::vector<EmbeddingRange> images) {
  static const TokenTable table = letters();
  GenerationParams params;
  params.max_new_tokens = 6;
  auto group = std::make_shared<SequenceGroup>();
  group->id = id;
  group->rules = std::make_shared<const GenerationRules>(params, OutputSpace{table, kStubVocab, 1}, prompt);
  group->arrival = id;
  group->keeps_blocks = id % 3 != 0;
  group->embeddings = std::move(images);
  group->cross_images = group_images(group->embeddings, kRowsOfBlock, kBlockLen);
  return std::make_shared<Sequence>(std::move(group), 0, std::move(prompt));
}

// Images that a token sees, by the rule as it is reported: those of the last run of image tokens up to it.
std::vector<float> seen_by(const std::vector<EmbeddingRange>& images, int token) {
  std::vector<float> seen;
  int last = -2;
  for (const EmbeddingRange& image : images) {
    if (image.begin > token) break;
    if (image.begin != last + 1) seen.clear();
    last = image.begin;
    for (int row = 1; row < static_cast<int>(image.rows->count()); ++row) {
      seen.push_back(0);
      image.rows->read(row, 0, 1, &seen.back());
    }
  }
  return seen;
}

// A page holds two layers' blocks of tokens, or as many rows of one layer of images.
CachePlan image_plan() {
  CacheGroup tokens = small_group(MemoryKind::kPaged, kBlockLen);
  tokens.piece_bytes /= 2;
  tokens.pieces = 2;
  CacheGroup images = tokens;
  images.kind = MemoryKind::kCross;
  images.pieces = 1;
  const CachePlan plan = plan_cache(kBlockLen, {tokens, images});
  CHECK_EQUAL(plan.groups[1].block_len, kRowsOfBlock);
  CHECK_EQUAL(plan.groups[1].pages, 1);
  return plan;
}

// Image content of the cache's blocks.
class Memory {
 public:
  void run(const Step& step) {
    int filled = 0;
    for (const EncoderKvWrite& write : step.input.kv_writes) {
      CHECK_EQUAL(static_cast<int>(write.tables->front().size()), write.group->block_count());
      for (int row = write.first; row < write.first + write.count; ++row) {
        write.group->read(row, &rows_[slot_of(write.tables->front(), row)]);
      }
      filled += write.count;
    }
    CHECK(filled <= kStepTokens);
    filled_ += filled;
    for (const StepSpan& span : step.input.spans) {
      for (int position = span.first_position; position < span.first_position + span.count; ++position) {
        const int32_t block = span.tables->front().at(static_cast<size_t>(position / kBlockLen));
        std::erase_if(rows_, [block](const auto& row) { return row.first.first == block; });
      }
    }
    for (size_t i = 0; i < step.sequences.size(); ++i) check_cross_spans(step, i);
  }
  int filled() const { return filled_; }

 private:
  using RowSlot = std::pair<int32_t, int>;

  static RowSlot slot_of(const std::vector<int32_t>& blocks, int row) {
    return {blocks.at(static_cast<size_t>(row / kRowsOfBlock)), row % kRowsOfBlock};
  }

  void check_cross_spans(const Step& step, size_t index) {
    const StepSpan& span = step.input.spans[index];
    for (int i = 0; i < span.count; ++i) {
      std::vector<float> seen;
      int attending = 0;
      for (const CrossAttentionSpan& cross : step.input.cross_spans) {
        const int row = span.first_token + i;
        if (row < cross.first_token || row >= cross.first_token + cross.count) continue;
        ++attending;
        for (int r = 0; r < cross.seen; ++r) seen.push_back(rows_.at(slot_of(cross.tables->front(), r)));
      }
      CHECK(attending <= 1);
      CHECK(seen == seen_by(step.sequences[index]->group->embeddings, span.first_position + i));
    }
  }

  std::map<RowSlot, float> rows_;
  int filled_ = 0;
};

SchedulerConfig config() {
  SchedulerConfig config{3, kStepTokens};
  return config;
}

// Runs a step to its end.
void run(Scheduler& scheduler, Memory& memory, Step& step) {
  scheduler.plan(step);
  scheduler.check_invariants();
  memory.run(step);
  scheduler.commit(step);
  scheduler.check_invariants();
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.input.spans[i].requested != SpanLogits::kNone) step.sequences[i]->tokens.push_back(1);
  }
}

}  // namespace

TEST(every_token_sees_the_rows_of_its_images_whatever_happens_to_blocks) {
  std::mt19937 random(7);
  const auto below = [&](unsigned count) { return static_cast<int>(random() % count); };
  int64_t preempted = 0;
  for (int history = 0; history < 400; ++history) {
    BlockCache blocks(image_plan(), {kBlocks});
    Scheduler scheduler(config(), blocks);
    Memory memory;
    Step step;
    RequestId next = 1;
    for (int event = 0; event < 60; ++event) {
      if (random() % 4 == 0) {
        std::vector<int32_t> prompt(static_cast<size_t>(1 + below(20)), 1);
        std::vector<EmbeddingRange> images;
        for (int token = below(6); token < static_cast<int>(prompt.size()) && images.size() < 3;
             token += 1 + below(3) * 3) {
          const int content = 100 * (1 + below(3));
          images.push_back(image_at(token, content, 1 + content / 10 % 30));
        }
        scheduler.add(make_sequence(next++, std::move(prompt), std::move(images)));
      } else if (random() % 9 == 0) {
        const RequestId id = 1 + random() % next;
        scheduler.remove_if([id](const Sequence& s) { return s.group->id == id; });
      } else {
        run(scheduler, memory, step);
        if (scheduler.running_count() + scheduler.waiting_count() > 0) CHECK(!step.is_empty());
        scheduler.remove_if([](const Sequence& s) {
          return static_cast<int>(s.tokens.size()) >= s.prompt_len() + s.params().max_new_tokens;
        });
      }
      scheduler.check_invariants();
    }
    preempted += scheduler.counts().preemptions;
    scheduler.remove_if([](const Sequence&) { return true; });
    scheduler.check_invariants();
    CHECK_EQUAL(blocks.pool().available_count(), kBlocks);
  }
  CHECK(preempted > 20);
}

TEST(an_image_is_written_some_rows_a_step_alongside_running_responses_and_found_by_the_next_who_shows_it) {
  BlockCache blocks(image_plan(), {kBlocks});
  Scheduler scheduler(config(), blocks);
  Memory memory;
  Step step;
  scheduler.add(make_sequence(1, {1, 1}, {}));
  run(scheduler, memory, step);
  scheduler.add(make_sequence(2, {1, 1, 1, 1, 1}, {image_at(2, 300, 25)}));
  // 10 rows a step; the two tokens in front of the image do not wait for it.
  const std::vector<std::pair<size_t, int>> expected{{1 + 2, 10}, {1, 20}, {1 + 3, 25}, {2, 25}};
  for (const auto& [tokens, filled] : expected) {
    run(scheduler, memory, step);
    CHECK_EQUAL(step.input.tokens.size(), tokens);
    CHECK_EQUAL(memory.filled(), filled);
  }
  scheduler.remove_if([](const Sequence&) { return true; });
  scheduler.add(make_sequence(3, {7, 1, 1}, {image_at(1, 300, 25)}));
  run(scheduler, memory, step);
  CHECK_EQUAL(step.input.tokens.size(), 3u);
  CHECK_EQUAL(memory.filled(), 25);
}

TEST(images_that_no_token_to_come_looks_at_give_their_blocks_back) {
  BlockCache blocks(image_plan(), {kBlocks});
  Scheduler scheduler(config(), blocks);
  Memory memory;
  Step step;
  scheduler.add(make_sequence(1, {1, 1, 1, 1}, {image_at(0, 100, 10), image_at(2, 200, 10)}));
  run(scheduler, memory, step);
  CHECK_EQUAL(step.input.tokens.size(), 2u);  // up to the second image
  for (int round = 0; round < 2; ++round) run(scheduler, memory, step);
  CHECK_EQUAL(blocks.pool().referenced_count(), 2 + 2);  // two of text, two of the second image
}

}  // namespace turbomind::testing
