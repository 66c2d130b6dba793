// The decoder's weights in memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/moe.h"
#include "model/attention/compressed_attention.h"
#include "model/attention/self_attention.h"
#include "model/norm_storage.h"
#include "model/recurrence/recurrence_kind.h"
#include "model/spec/shard.h"
#include "weights/weight_arena.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct MlpWeights {
  LinearStorage up;  // gate above up where there is a gate
  LinearStorage down;
  XieluFactors xielu = {};  // where that is the activation
  float cut = 0;            // MlpSpec::cuts
  WEIGHT_MEMBERS(up, down, xielu, cut)
};

// Weights of a layer for its further input (model/layer_inputs.h).
struct LayerInputWeights {
  LinearStorage gate;     // [size, hidden]
  LinearStorage project;  // [hidden, size]
  NormStorage norm;
  WEIGHT_MEMBERS(gate, project, norm)
};

// Weights of a layer for the residual streams (model/streams.h).
struct StreamWeights {
  NormStorage router_norm;
  LinearStorage router;       // [streams, hidden], never rounded
  LinearStorage predict;      // [streams squared, streams], never rounded
  LinearStorage correct;      // [streams, streams], never rounded
  LinearStorage branch_down;  // [rank, hidden]
  LinearStorage branch_up;    // [hidden, rank]
  NormStorage branch_norm;
  WEIGHT_MEMBERS(router_norm, router, predict, correct, branch_down, branch_up, branch_norm)
};

// Weights of a half of a layer, or of the output, for hyper-connections (model/streams.h).
struct HyperWeights {
  NormStorage norm;    // [streams hidden]
  LinearStorage down;  // [rank, streams hidden]
  LinearStorage up;    // [streams hidden, rank]
  // Projection to the weights of streams, never rounded: [streams, streams hidden], or empty for the output; without
  // `down`, [2 streams, streams hidden], to read and to add, or for the output to read alone; then, where streams are
  // mixed, [streams squared, streams hidden].
  LinearStorage add;
  AlignedBuffer biases;   // float32, of those outputs, without `down`
  float read_scale = 1;   // of those to read, and
  float added_scale = 1;  // those to add, likewise
  float mixed_scale = 1;  // those to mix by
  WEIGHT_MEMBERS(norm, down, up, add, biases, read_scale, added_scale, mixed_scale)
};

// Weights of a layer that adds embeddings of n-grams (model/ngrams.h).
struct NgramWeights {
  StoredTable table;
  LinearStorage keys;      // [streams hidden, width]
  LinearStorage values;    // [hidden, width]
  NormStorage key_norm;    // [streams hidden]
  NormStorage query_norm;  // the same
  NormStorage conv_norm;   // the same
  AlignedBuffer conv;      // float32 [streams hidden, conv_reach], zeros between the taps
  WEIGHT_MEMBERS(table, keys, values, key_norm, query_norm, conv_norm, conv)
};

// Of an MLP with experts.
struct ExpertWeights {
  LinearStorage router;      // never rounded
  NormStorage router_norm;   // of what the router reads, and the division by sqrt(hidden); or empty
  AlignedBuffer correction;  // float32 [num_experts], or empty
  AlignedBuffer scales;      // float32 [num_experts], or empty
  // int32 [vocab, experts_per_token], where the router does not choose; in the host's memory
  std::vector<int32_t> token_experts;
  WeightArena arena;
  std::vector<ExpertWeight> experts;
  std::vector<ExpertWeight> shared;  // one, or none
  LinearStorage shared_gate;         // [1, hidden], never rounded; empty where there is none
  LinearStorage latent_in;           // [latent, hidden] in front of the routed experts, or empty
  LinearStorage latent_out;          // [hidden, latent] after them

  // `prefix` is all of the tensors' names before "router", "experts", ...
  static ExpertWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix, int layer);
};

// Weights of a layer in front of its recurrence, besides attention and MLP (SharedBlocksSpec).
struct SharedBlockWeights {
  NormStorage norm;       // [2 hidden], of the residual stream and the embeddings
  LinearStorage project;  // [hidden, hidden]
  WEIGHT_MEMBERS(norm, project)
};

struct LayerWeights {
  NormStorage attention_norm;  // empty in front of heads without one
  AttentionWeights attention;  // empty in a layer with a recurrence
  std::optional<CompressedAttentionWeights> compressed;
  std::optional<RecurrenceWeights> recurrence;
  NormStorage attention_output_norm;
  NormStorage mlp_norm;
  MlpWeights mlp;  // empty in a layer with experts alone
  std::optional<ExpertWeights> experts;
  NormStorage mlp_output_norm;
  NormStorage dense_output_norm;  // these three where experts are alongside an MLP
  NormStorage expert_norm;
  NormStorage expert_output_norm;
  std::optional<SharedBlockWeights> shared;
  std::optional<LayerInputWeights> input;
  std::optional<StreamWeights> streams;
  std::optional<HyperWeights> mixer_hyper;
  std::optional<HyperWeights> mlp_hyper;
  std::optional<NgramWeights> ngrams;
  float scale = 1;  // of what the layer hands on
  WEIGHT_MEMBERS(attention_norm, attention, compressed, recurrence, attention_output_norm, mlp_norm, mlp, experts,
                 mlp_output_norm, dense_output_norm, expert_norm, expert_output_norm, shared, input, streams,
                 mixer_hyper, mlp_hyper, ngrams, scale)
};

// A cross-attention layer: gated cross-attention, then a gated MLP, without adapters.
struct CrossLayerWeights {
  NormStorage attention_norm;
  LinearStorage q;
  LinearStorage kv;  // keys above values
  NormStorage q_norm;
  NormStorage k_norm;
  LinearStorage o;
  float attention_gate = 0;  // a factor
  NormStorage mlp_norm;
  MlpWeights mlp;
  float mlp_gate = 0;
  WEIGHT_MEMBERS(attention_norm, q, kv, q_norm, k_norm, o, attention_gate, mlp_norm, mlp, mlp_gate)
};

// A linear layer that adapters add to: what a shard holds of it, and what its rows are in the checkpoint.
struct AdaptedLayer {
  Slice outputs = 0;
  Slice inputs = 0;
  RowSources rows;
};

// Weights of a draft head for its input rows (model/head_input.h).
struct HeadWeights {
  LinearStorage join;
  NormStorage embedding_norm;  // MTP's
  NormStorage hidden_norm;     // MTP's and EAGLE-3's
  WEIGHT_MEMBERS(join, embedding_norm, hidden_norm)
};

// Where the layers' further inputs come from (model/layer_inputs.h).
struct InputTableWeights {
  LinearStorage table;    // [vocab, layers size], never rounded
  LinearStorage project;  // [layers size, hidden]
  NormStorage norm;       // [size]
  WEIGHT_MEMBERS(table, project, norm)
};

struct Weights {
  LinearStorage embedding;    // [vocab, hidden], WeightReader::table; also the output layer when that is not apart
  LinearStorage token_types;  // [token types, hidden], never rounded; empty where there are none
  LinearStorage position_embedding;  // [learned_positions, hidden], never rounded; empty where there are none
  NormStorage embedding_norm;        // empty where there is none
  LinearStorage distance_embedding;  // float32 [buckets, hidden], of disentangled attention, and its norm; or empty
  NormStorage distance_norm;
  std::optional<InputTableWeights> layer_inputs;
  std::vector<LinearStorage> stream_makers;   // [hidden, hidden], of each stream but the first
  std::vector<LinearStorage> stream_readers;  // the same, after the last layer
  std::optional<HyperWeights> hyper;          // after the last layer
  std::vector<LayerWeights> layers;
  std::vector<CrossLayerWeights> cross_layers;
  NormStorage final_norm;  // empty in heads without one
  std::optional<HeadWeights> head;
  // The output layer, of the shard's part of the vocabulary.
  LinearStorage lm_head;      // empty when embeddings are tied and not rounded; of 8 bits when rounded
  AlignedBuffer output_bias;  // float32, or empty
  Slice::Range vocab;
  std::vector<AdaptedLayer> adapted_layers;  // by LinearStorage::adapted_layer
  WEIGHT_MEMBERS(embedding, token_types, position_embedding, embedding_norm, distance_embedding, distance_norm,
                 layer_inputs, makers, readers, hyper, layers, cross_layers, final_norm, head, lm_head, output_bias,
                 vocab, adapted_layers)

  // Valid as long as this lives.
  LinearWeight output_layer() const;

  // Those of a shard. Throws Error naming the tensor that is missing, truncated or of the wrong shape.
  static Weights load(const Shard& shard, const Checkpoint& checkpoint, const WeightOptions& options, ThreadPool& pool);
  // Weights of a model of that spec, with nothing read: a program of it refers to them.
  static Weights outline(const ModelSpec& spec);
  // Lets adapters add to the embeddings of tokens and token types too.
  void adapt_embeddings(const ModelSpec& spec, const Checkpoint& checkpoint);
};

}  // namespace turbomind
