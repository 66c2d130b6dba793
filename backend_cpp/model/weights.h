// The decoder's weights in memory.
#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/linear.h"
#include "kernels/types.h"
#include "model/checkpoint.h"
#include "model/model_spec.h"

namespace turbomind {

// How matrices are kept in memory.
struct WeightOptions {
  DType dtype = DType::kFloat32;
  int bits = 0;    // 8 or 4: rounded while loading; 0: as `dtype` says
  int group = 32;  // inputs that share a scale
};

// Owns one linear layer's storage.
struct LinearStorage {
  AlignedBuffer data;
  AlignedBuffer scales;
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
  DType dtype = DType::kFloat32;  // of matrices that are not rounded; norms and biases are float32
  LinearStorage embedding;        // [vocab, hidden], never rounded; also the output layer when that is not apart
  std::vector<LayerWeights> layers;
  AlignedBuffer final_norm;
  LinearStorage lm_head;  // empty when embeddings are tied and not rounded; of 8 bits when rounded

  const LinearWeight& output_layer() const { return lm_head.view.data != nullptr ? lm_head.view : embedding.view; }

  // Throws Error naming the tensor that is missing, truncated or of the wrong shape.
  static Weights load(const ModelSpec& spec, const Checkpoint& checkpoint, const WeightOptions& options,
                      ThreadPool& pool);
};

}  // namespace turbomind
