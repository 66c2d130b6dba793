// Engine statistics, a consistent snapshot at the end of a step. Counters count since the start.
#pragma once

#include <array>
#include <cstdint>

#include "engine/speculative/speculative_config.h"

namespace turbomind {

struct SpeculationStats {
  int64_t spans = 0;  // of responses in steps, with drafts
  int64_t drafted = 0;
  int64_t accepted = 0;
  std::array<int64_t, kMaxDrafts> accepted_at{};  // drafts number 0, 1, ... of a span
};

// Of the cache.
struct EvictionCounts {
  int64_t evictions = 0;    // contents that were lost
  int64_t swapped_out = 0;  // to the host's memory
  int64_t swapped_in = 0;   // and came back
};

// Of files of cache blocks.
struct FileCounts {
  int64_t files = 0;    // known to this process
  int64_t bytes = 0;    // granted to all
  int64_t damaged = 0;  // that failed verification
  int64_t failures = 0;
};
// Of blocks to and from these.
struct TransferCounts {
  int64_t written = 0;
  int64_t read = 0;
};
struct DiskStats : FileCounts, TransferCounts {};

// Numbers of requests with a response format, except `compilations`.
struct GrammarCounts {
  int64_t requests = 0;
  int64_t compilations = 0;  // that came to an end
  int64_t hits = 0;          // whose grammar was there, or compiled for another request
  int64_t failures = 0;      // that were refused for their format
};

// Of the scheduler.
struct SchedulerCounts {
  int64_t preemptions = 0;
  int64_t prefix_cache_queries = 0;  // tokens looked for in the cache, by all responses and by those that begin again
  int64_t prefix_cache_hits = 0;     // of those, found there
  int64_t admitted = 0;              // requests that came into the batch
  double queue_seconds = 0;          // from acceptance to there, summed
};

struct EventCounts {
  int64_t event_batches = 0;  // of cache events, a step each
  int64_t event_losses = 0;   // times that all events had to be given again
};

struct EngineStats : EvictionCounts, SchedulerCounts, EventCounts {
  int running = 0;
  int waiting = 0;
  int sessions = 0;
  int blocks_total = 0;
  int blocks_used = 0;  // referenced by requests
  int blocks_idle = 0;  // kept because their content may be used again
  int host_blocks_total = 0;
  int host_blocks_used = 0;

  int64_t completed = 0;
  int64_t cancelled = 0;
  int64_t failed = 0;           // after having been accepted
  int64_t tokens_in = 0;        // prompts, history included
  int64_t tokens_computed = 0;  // tokens run
  int64_t tokens_out = 0;
  DiskStats disk;
  GrammarCounts grammar;
  SpeculationStats speculation;
  int64_t steps = 0;
  double step_seconds = 0;     // whole steps
  double forward_seconds = 0;  // of those, inside the model; on a GPU, its own time
  int64_t first_tokens = 0;
  double first_token_seconds = 0;  // from acceptance to first token, summed over responses
  int64_t later_tokens = 0;
  double later_token_seconds = 0;  // from one token to the next, summed
};

}  // namespace turbomind
