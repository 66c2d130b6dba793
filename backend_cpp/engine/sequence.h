// A request inside the engine: its tokens, its cache blocks and how far it has come.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"

namespace turbomind {

struct Sequence {
  Sequence(Request&& from, uint64_t seed, int vocab_size)
      : request(std::move(from)),
        tokens(request.input_ids),
        prompt_len(static_cast<int>(tokens.size())),
        sampler(request.params, seed, vocab_size),
        text(request.params.stop_words) {
    for (const int32_t token : tokens) sampler.note(token);
  }

  // Tokens whose keys and values are not in the cache yet; a decoding sequence has one.
  int pending() const { return static_cast<int>(tokens.size()) - cached; }
  int generated() const { return static_cast<int>(tokens.size()) - prompt_len; }

  Request request;
  std::vector<int32_t> tokens;  // prompt, then answer
  int prompt_len;
  int cached = 0;               // leading tokens whose keys and values are in `blocks`
  std::vector<int32_t> blocks;  // owned; from the engine's BlockPool
  int planned = 0;              // tokens of this sequence in the step being built or run

  Sampler sampler;
  TextStream text;
  Output held;                  // with stream false: what has been generated so far
};

}  // namespace turbomind
