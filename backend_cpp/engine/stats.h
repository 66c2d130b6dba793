// A consistent picture of the engine at the end of a step. Counters count since the start.
#pragma once

#include <cstdint>

namespace turbomind {

struct EngineStats {
  int running = 0;
  int waiting = 0;
  int sessions = 0;
  int blocks_total = 0;
  int blocks_used = 0;  // referenced by requests
  int blocks_idle = 0;  // kept because their content may be used again

  int64_t completed = 0;
  int64_t cancelled = 0;
  int64_t failed = 0;           // after having been accepted
  int64_t tokens_in = 0;        // prompts, history included
  int64_t tokens_computed = 0;  // rows run
  int64_t tokens_matched = 0;   // prompt tokens taken from the cache instead
  int64_t tokens_out = 0;
  int64_t evictions = 0;
  int64_t preemptions = 0;
  int64_t steps = 0;
  double step_seconds = 0;     // whole steps
  double forward_seconds = 0;  // of those, inside the model; on a GPU, its own time
  int64_t first_tokens = 0;
  double first_token_seconds = 0;  // from acceptance to first token, summed over answers
  int64_t later_tokens = 0;
  double later_token_seconds = 0;  // from one token to the next, summed
};

}  // namespace turbomind
