// Sequence group of a request, and its sequences, one a response: tokens, cache blocks and progress.
//
//   tokens   |-------- prompt --------|--- response ---|in flight|
//            |---- cached ----|------ pending() ---------------|
//            |- published -|                                       (whole blocks)
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/cache/block_cache.h"
#include "engine/cache/disk_tier.h"
#include "engine/cache/image_blocks.h"
#include "engine/cache/sequence_memory.h"
#include "engine/generation/generation.h"
#include "engine/request.h"
#include "engine/speculative/speculator.h"

namespace turbomind {

// The responses to one request, and their common data.
struct SequenceGroup : RequestInfo {
  std::shared_ptr<const GenerationRules> rules;
  std::shared_ptr<const OutputCallback> on_output;
  uint64_t arrival = 0;                    // order of arrival
  uint64_t seed = 0;                       // of the first response
  PrefixScope scope;                       // scope of its blocks in the prefix cache
  uint64_t draft_scope = 0;                // scope of the texts that its drafts come from
  std::vector<int> branch_points;          // positions found by branch_points(), for models with states or windows
  int history_len = 0;                     // leading tokens that came from the session
  std::vector<EmbeddingRange> embeddings;  // of the prompt; kept until the last response has ended
  std::vector<ImageGroup> cross_images;    // the same, for cross-attention
  int open_sequences = 1;                  // responses that have started and not finished
  bool may_match = true;                   // its prompt may use cached blocks
  bool keeps_blocks = false;               // blocks stay cached when it ends
  std::shared_ptr<const std::vector<int32_t>> prompt;  // history and input, if the caller wants them back
  Clock::time_point accepted;
  std::optional<Clock::time_point> admitted;  // when the first response was admitted
  int cached_len = 0;                         // prompt tokens that were found in the cache then
  std::optional<PrefixReport> cache_report;   // with include_cache_report, then
};

struct Sequence {
  // `all_tokens`: the prompt.
  Sequence(std::shared_ptr<SequenceGroup> of, int which, std::vector<int32_t> all_tokens)
      : group(std::move(of)),
        index(which),
        tokens(std::move(all_tokens)),
        generation(group->rules, index, group->seed, group->arrival << 24 | static_cast<uint64_t>(index), tokens),
        images(group->cross_images) {}
  Sequence(const Sequence&) = delete;

  const GenerationParams& params() const { return group->rules->params; }
  int prompt_len() const { return group->rules->prompt_len; }
  PrefixKey prefix() const {
    return {group->scope, tokens, group->embeddings,
            group->adapter ? std::string_view(group->adapter->name) : std::string_view(), params().cache_salt};
  }
  // Tokens whose keys and values are not cached yet; a decoding sequence has one.
  int pending() const { return static_cast<int>(tokens.size()) + in_flight - cached(); }
  // Leading tokens whose keys, values and states are in `memory` (cached).
  int cached() const { return memory.cached(); }
  // Tokens of the response, including those in flight.
  int chosen() const { return generation.generated() + in_flight; }
  // Order of service: priority, then arrival, then response.
  bool is_before(const Sequence& other) const {
    return std::tie(group->priority, group->arrival, index) <
           std::tie(other.group->priority, other.group->arrival, other.index);
  }

  std::shared_ptr<SequenceGroup> group;
  int index;                    // which of the n responses
  std::vector<int32_t> tokens;  // prompt, then response
  Generation generation;

  SequenceMemory memory;
  DiskLookup disk;         // its request to the disk tier before it starts
  int planned = 0;         // tokens in the step being built or run, including drafts
  int in_flight = 0;       // tokens after `tokens` that steps in flight sample; 0 or 1 while planning
  int in_flight_span = 0;  // the span that samples the last of them
  Drafts drafts;           // draft tokens after `tokens`; none while any are in flight
  ImageBlocks images;      // that its tokens attend to by cross-attention
  bool is_open = true;     // false: the response has ended, but a step in flight still refers to it
  std::optional<Clock::time_point> first_token;
  Clock::time_point last_token;
};

}  // namespace turbomind
