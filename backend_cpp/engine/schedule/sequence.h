// A request inside the engine, and each of its responses as the scheduler sees it: tokens, cache blocks and how far it
// has come.
//
//   tokens   |-------- prompt --------|--- response ---| unseen |
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

#include "engine/generation/generation.h"
#include "engine/generation/generation_rules.h"
#include "engine/request.h"
#include "engine/schedule/block_cache.h"
#include "engine/schedule/disk_tier.h"
#include "engine/schedule/image_blocks.h"
#include "engine/schedule/sequence_memory.h"
#include "engine/speculative/speculator.h"

namespace turbomind {

// The responses to one request, and what they share.
struct SequenceGroup {
  RequestId request = 0;
  std::shared_ptr<const GenerationRules> rules;
  std::optional<SessionParams> session;
  std::shared_ptr<const LoadedAdapter> adapter;  // null: none
  std::shared_ptr<const OutputCallback> on_output;
  std::optional<Clock::time_point> deadline;
  int priority = 0;                        // lower numbers are served first
  uint64_t arrival = 0;                    // order of arrival
  uint64_t seed = 0;                       // of the first response
  PrefixScope scope;                       // where its blocks are published
  uint64_t draft_scope = 0;                // of the texts that its draft tokens come from
  std::vector<int> marks;                  // as likely_forks() finds them, where layers need it
  int history_len = 0;                     // leading tokens that came from the session
  std::vector<EmbeddingRange> embeddings;  // of the prompt; kept until the last response has ended
  std::vector<ImageGroup> looked_at;       // the same, where tokens look at them
  int open_sequences = 1;                  // responses that have not finished; those that never began are not counted
  bool may_match = true;                   // published blocks can stand for its prompt
  bool keeps_blocks = false;               // blocks stay published when it ends
  std::shared_ptr<const std::vector<int32_t>> prompt;  // history and input, for a caller who wants it back
  float grammar_seconds = -1;                          // as in Request
  Clock::time_point accepted;
  std::optional<Clock::time_point> admitted;  // when the first response came into the batch
  int cached_len = 0;                         // tokens of its prompt that were found in the cache then
};

struct Sequence {
  // `all_tokens`: the prompt.
  Sequence(std::shared_ptr<SequenceGroup> of, int which, std::vector<int32_t> all_tokens)
      : group(std::move(of)),
        index(which),
        tokens(std::move(all_tokens)),
        generation(group->rules, index, group->seed, group->arrival << 24 | static_cast<uint64_t>(index), tokens),
        images(group->looked_at) {}
  Sequence(const Sequence&) = delete;

  const GenerationParams& params() const { return group->rules->params; }
  int prompt_len() const { return group->rules->prompt_len; }
  PrefixKey prefix() const {
    return {group->scope, tokens, group->embeddings,
            group->adapter ? std::string_view(group->adapter->name) : std::string_view(), params().cache_salt};
  }
  // Tokens whose keys and values are not in the cache yet; a decoding sequence has one.
  int pending() const { return static_cast<int>(tokens.size()) + in_flight - cached(); }
  // Leading tokens whose keys, values and states are in `memory`.
  int cached() const { return memory.cached(); }
  // Tokens of the response, those that nobody has seen included.
  int chosen() const { return generation.generated() + in_flight; }
  // Order of service: priority, then arrival, then response.
  bool is_before(const Sequence& other) const {
    if (group->priority != other.group->priority) return group->priority < other.group->priority;
    return group->arrival != other.group->arrival ? group->arrival < other.group->arrival : index < other.index;
  }

  std::shared_ptr<SequenceGroup> group;
  int index;                    // which of the n responses
  std::vector<int32_t> tokens;  // prompt, then response
  Generation generation;

  SequenceMemory memory;
  DiskQuestion disk;       // what it waits for before it begins
  int planned = 0;         // tokens of this sequence in the step being built or run, drafts included
  int in_flight = 0;       // tokens after `tokens` that steps under way choose; when one is planned, 0 or 1
  int in_flight_span = 0;  // the span that chooses the last of them
  Drafts drafts;           // tokens after `tokens`; none where any are unseen
  ImageBlocks images;      // that its tokens look at
  bool is_open = true;     // false: the response has ended, and only a step under way still knows of it
  std::optional<Clock::time_point> first_token;
  Clock::time_point last_token;
};

}  // namespace turbomind
