// The decoder's weights in memory.
#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/linear.h"
#include "kernels/types.h"
#include "model/checkpoint.h"
#include "model/model_spec.h"

namespace turbomind {

// Owns one linear layer's storage.
struct LinearStorage {
  AlignedBuffer data;
  AlignedBuffer bias;
  LinearWeight view;
};

struct LayerWeights {
  AlignedBuffer attention_norm;  // float32 [hidden]
  LinearStorage qkv;
  LinearStorage o;
  AlignedBuffer mlp_norm;  // float32 [hidden]
  LinearStorage gate_up;
  LinearStorage down;
};

struct Weights {
  DType dtype = DType::kFloat32;  // of matrices; norms and biases are float32
  LinearStorage embedding;        // [vocab, hidden], also the output layer when embeddings are tied
  std::vector<LayerWeights> layers;
  AlignedBuffer final_norm;
  LinearStorage lm_head;  // empty when embeddings are tied

  const LinearWeight& output_layer() const { return lm_head.view.data != nullptr ? lm_head.view : embedding.view; }

  // Throws Error naming the tensor that is missing, truncated or of the wrong shape.
  static Weights load(const ModelSpec& spec, const Checkpoint& checkpoint, DType dtype, ThreadPool& pool);
};

}  // namespace turbomind
