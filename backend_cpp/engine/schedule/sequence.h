// A request inside the engine, and each of its answers as the scheduler sees it: tokens, cache blocks and how far it
// has come.
//
//   tokens   |-------- prompt --------|---- answer ----| unseen |
//            |---- cached ----|------ pending() ---------------|
//            |- published -|                                       (whole blocks)
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/answer/answer.h"
#include "engine/answer/answer_rules.h"
#include "engine/request.h"
#include "engine/schedule/block_cache.h"
#include "engine/schedule/picture_blocks.h"
#include "engine/speculation/speculator.h"

namespace turbomind {

// The answers to one request, and what they share.
struct SequenceGroup {
  RequestId request = 0;
  std::shared_ptr<const AnswerRules> rules;
  std::optional<SessionParams> session;
  std::shared_ptr<const LoadedAdapter> adapter;  // null: none
  std::shared_ptr<const OutputCallback> on_output;
  std::optional<Clock::time_point> deadline;
  int priority = 0;                        // lower numbers are served first
  uint64_t arrival = 0;                    // order of arrival
  uint64_t seed = 0;                       // of the first answer
  uint64_t scope = 0;                      // where its blocks are published (engine/schedule/block_cache.h)
  int history_len = 0;                     // leading tokens that came from the session
  std::vector<EmbeddingRange> embeddings;  // of the prompt; kept until the last answer has ended
  std::vector<PictureGroup> looked_at;     // the same, where tokens look at them
  int open_answers = 1;                    // answers that have not finished; those that never began are not counted
  bool may_match = true;                   // published blocks can stand for its prompt
  bool keeps_blocks = false;               // blocks stay published when it ends
  std::shared_ptr<const std::vector<int32_t>> prompt;  // history and input, for a caller who wants it back
  float grammar_seconds = -1;                          // as in Request
  Clock::time_point accepted;
  std::optional<Clock::time_point> admitted;  // when the first answer came into the batch
  int cached_len = 0;                         // tokens of its prompt that were found in the cache then
};

struct Sequence {
  // `all_tokens`: the prompt.
  Sequence(std::shared_ptr<SequenceGroup> of, int which, std::vector<int32_t> all_tokens)
      : group(std::move(of)),
        index(which),
        tokens(std::move(all_tokens)),
        answer(group->rules, index, group->seed, group->arrival << 24 | static_cast<uint64_t>(index), tokens),
        pictures(group->looked_at) {}
  Sequence(const Sequence&) = delete;

  const GenerationParams& params() const { return group->rules->params; }
  int prompt_len() const { return group->rules->prompt_len; }
  PrefixKey prefix() const {
    return {group->scope, tokens, group->embeddings,
            group->adapter ? std::string_view(group->adapter->name) : std::string_view(), params().cache_salt};
  }
  // Tokens whose keys and values are not in the cache yet; a decoding sequence has one.
  int pending() const { return static_cast<int>(tokens.size()) + unseen - cached; }
  // Tokens of the answer, those that nobody has seen included.
  int chosen() const { return answer.generated() + unseen; }
  int held_blocks() const { return static_cast<int>(blocks.size()) - freed_blocks; }
  // Order of service: priority, then arrival, then answer.
  bool is_before(const Sequence& other) const {
    if (group->priority != other.group->priority) return group->priority < other.group->priority;
    return group->arrival != other.group->arrival ? group->arrival < other.group->arrival : index < other.index;
  }

  std::shared_ptr<SequenceGroup> group;
  int index;                    // which of the n answers
  std::vector<int32_t> tokens;  // prompt, then answer
  Answer answer;

  int cached = 0;               // leading tokens whose keys and values are in `blocks`
  int published = 0;            // leading blocks whose content is published
  std::vector<int32_t> blocks;  // referenced in the BlockCache
  int freed_blocks = 0;         // leading entries of `blocks` that lie behind the window: kNoBlock
  int planned = 0;              // rows of this sequence in the step being built or run, drafts included
  int unseen = 0;               // tokens behind `tokens` that steps under way choose; when one is planned, 0 or 1
  int unseen_span = 0;          // the span that chooses the last of them
  Drafts drafts;                // tokens behind `tokens`; none where any are unseen
  PictureBlocks pictures;       // that its tokens look at
  bool is_open = true;          // false: the answer has ended, and only a step under way still knows of it
  std::optional<Clock::time_point> first_token;
  Clock::time_point last_token;
};

}  // namespace turbomind
