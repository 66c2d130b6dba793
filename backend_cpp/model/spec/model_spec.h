// What one decoder model is: sizes and the choices in which families differ. Read from spec.json (docs/interfaces.md);
// lmdeploy/turbomind/spec.py explains every field and checks them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/moe.h"
#include "kernels/norm.h"

namespace turbomind {

enum class QkNorm : uint8_t { kNone, kHead, kProjection };
enum class StretchKind : uint8_t { kNone, kDynamic, kQwen, kLong };
enum class HeadKind : uint8_t { kMtp, kEagle, kEagle3 };

struct NormSpec {
  float eps = 0;
  NormKind kind = NormKind::kRms;
  float offset = 0;
  bool bias = false;
};

struct BlockSpec {
  bool is_parallel = false;
  bool shares_norm = false;
  bool has_output_norms = false;
  float residual_scale = 1;
};

struct MlpSpec {
  Activation activation = Activation::kSilu;
  bool is_gated = true;
  bool bias = false;
};

struct RouterSpec {
  RouterScore score = RouterScore::kSoftmax;
  bool normalizes = false;
  float scale = 1;
  int groups = 1;
  int top_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  bool has_correction = false;
  bool bias = false;
  float jitter = 0;
};

struct MoeSpec {
  int num_experts = 0;
  int experts_per_token = 0;
  int intermediate_size = 0;
  RouterSpec router;
  std::vector<bool> layers;  // [num_layers]
  int shared_intermediate_size = 0;
  bool has_shared_gate = false;
};

struct MlaSpec {
  int kv_rank = 0;
  int q_rank = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  int value_dim = 0;
  float norm_eps = 0;
};

struct AttentionSpec {
  float scale = 1;  // multiplies q.k
  bool qkv_bias = false;
  bool o_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  float qkv_clip = 0;
  float softcap = 0;
  std::vector<int> windows;         // [num_layers]; 0: none
  std::vector<float> alibi_slopes;  // [num_heads], or empty
  bool has_sinks = false;
  int logn_length = 0;
  std::optional<MlaSpec> mla;
};

struct StretchSpec {
  StretchKind kind = StretchKind::kNone;
  int length = 0;
  float factor = 1;
  std::vector<float> inv_freq;
};

struct RopeSpec {
  double theta = 0;
  std::vector<float> inv_freq;  // [rotated dimensions / 2], static scaling applied
  float attention_scaling = 1;  // multiplies cos and sin
  bool is_interleaved = false;
  std::vector<int32_t> axes;  // [inv_freq]; which of a position's three numbers turns a pair; empty: it has one
  StretchSpec stretch;
};

// Of a model that sees.
struct PicturesSpec {
  int deepstack_layers = 0;
  int whole_rows = 0;  // of a picture whose tokens see each other; 0: they see what is before them
  // In front of which layers stand those that look at pictures by cross-attention, ascending; they are not counted in
  // num_layers. Empty: pictures stand among the tokens.
  std::vector<int> cross_layers;
};

struct OutputSpec {
  float scale = 1;
  float softcap = 0;
  bool bias = false;
  bool normalizes_weight = false;
};

// Of a head: layers that guess for another model, out of its hidden states.
struct HeadSpec {
  HeadKind kind = HeadKind::kEagle;
  int target_hidden_size = 0;
  std::vector<int> target_layers;  // in front of which hidden states are taken, joined; empty: behind the last norm
  bool bias = false;               // of what joins hidden states and embeddings
  std::vector<int32_t> tokens;     // those it guesses among, in the order of its logits; empty: all

  // Numbers that it takes of a row of the model.
  int width() const { return target_hidden_size * static_cast<int>(std::max<size_t>(1, target_layers.size())); }
  bool has_first_norm() const { return kind != HeadKind::kEagle; }
  bool has_final_norm() const { return kind != HeadKind::kEagle; }
};

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

  NormSpec norm;
  BlockSpec block;
  MlpSpec mlp;
  std::optional<MoeSpec> moe;
  AttentionSpec attention;
  std::vector<RopeSpec> ropes;
  std::vector<int> layer_ropes;  // [num_layers]; index of `ropes`, -1: none
  OutputSpec output;
  float embedding_scale = 1;
  std::optional<PicturesSpec> pictures;  // rows may take the place of token embeddings
  bool tied_embeddings = false;
  std::optional<HeadSpec> head;  // it is one

  int max_position_embeddings = 0;
  int bos_token_id = -1;  // -1: none
  std::vector<int32_t> eos_token_ids;

  int cross_layer_count() const { return pictures ? static_cast<int>(pictures->cross_layers.size()) : 0; }

  // Of a row: one a token of the vocabulary, but for some heads.
  int logit_count() const { return head && !head->tokens.empty() ? static_cast<int>(head->tokens.size()) : vocab_size; }

  // Throws Error naming the file and the first thing wrong in it.
  static ModelSpec from_file(const std::string& path);
};

}  // namespace turbomind
