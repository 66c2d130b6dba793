#pragma once

#include <map>
#include <vector>

#include "device/operators.h"
#include "kernels/paged_attention.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/spec/model_spec_fields.h"

namespace turbomind {

// Where the keys and values of an encoder's texts are while a layer runs: blocks of its own, which every layer and
// every step writes again. Nothing of a text is kept, so none of them is the cache's.
class TextMemory {
 public:
  // `shape`: of one layer, without a block's length.
  TextMemory(Operators& ops, const ModelSpec& spec, const CacheLayout& shape, int max_tokens);

  // Called once: takes the memory of `max_tokens` tokens in at most this many texts.
  void allocate(Operators& ops, int max_texts);
  // The texts of the step that follows, which are its spans.
  void begin_step(Operators& ops, const StepInput& input);
  // Arguments of attention in a layer with this window, 0: none.
  void fill(int window, AttentionParams& params) const;

 private:
  CacheLayout layout_;
  int max_tokens_;
  AlignedBuffer pages_;
  std::vector<int32_t> blocks_;    // of the step
  std::map<int, Staged> kv_lens_;  // int32 [max_tokens] by window: keys before this position are seen
};

// Embedding of a text by an encoder: one vector of the hidden states of its tokens.

// Whether one token's hidden state is the vector.
constexpr bool takes_one(TextPooling pooling) {
  return pooling == TextPooling::kFirst || pooling == TextPooling::kLast;
}

// vector [size] of rows [count, size], count >= 1. Rows are summed in order, so that the bits depend on the text alone.
void pool_text(TextPooling pooling, const float* rows, int count, int size, float* vector);

}  // namespace turbomind
