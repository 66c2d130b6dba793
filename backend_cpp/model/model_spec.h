// What one decoder model is: sizes and the choices in which families differ. Read from spec.json (docs/interfaces.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace turbomind {

struct ModelSpec {
  std::string architecture;
  std::string model_name;
  std::string dtype;  // of the checkpoint

  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;

  float norm_eps = 0;
  bool qkv_bias = false;
  bool o_bias = false;
  float attention_scale = 1;         // multiplies q.k
  std::vector<float> rope_inv_freq;  // [head_dim / 2], static scaling applied
  float rope_attention_scaling = 1;  // multiplies cos and sin
  bool tied_embeddings = false;

  int max_position_embeddings = 0;
  int bos_token_id = -1;  // -1: none
  std::vector<int32_t> eos_token_ids;

  // Throws Error naming the file and the first thing wrong in it.
  static ModelSpec from_file(const std::string& path);
};

}  // namespace turbomind
