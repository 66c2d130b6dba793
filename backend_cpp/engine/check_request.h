// Request validation: a request that passes can be served.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/generation/token_table.h"
#include "engine/request.h"
#include "model/model_runner.h"

namespace turbomind {

struct RequestLimits {
  int vocab_size = 0;
  int session_len = 0;
  ImageTraits images{};                // of rows in place of token embeddings
  int max_whole_tokens = 0;            // that one step can hold
  bool has_grammars = false;           // response formats are available
  bool is_pooling_model = false;       // the model generates nothing
  std::vector<int32_t> eos_token_ids;  // end responses that do not ignore them
};

// Refuses what is wrong with a request, and completes what it leaves to the model. Throws Error. Any thread.
void check_request(Request& request, const RequestLimits& limits, const TokenTable& tokens);

}  // namespace turbomind
