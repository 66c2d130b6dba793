#include "model/move_weights.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace turbomind {

namespace {

// Replaces the memory of each buffer of the weights. Structured bindings name every member of a struct, so a new member
// that is not moved does not compile.
class Mover {
 public:
  explicit Mover(std::function<void(AlignedBuffer&)> move_buffer) : move_buffer_(std::move(move_buffer)) {}

  void move(Weights& weights) {
    auto& [embedding, token_types, position_embedding, embedding_norm, layer_inputs, stream_makers, stream_readers,
           layers, cross_layers, final_norm, head, lm_head, output_bias, vocab, adapted_layers] = weights;
    (void)vocab, (void)adapted_layers;
    all(embedding, token_types, position_embedding, embedding_norm, layer_inputs, stream_makers, stream_readers, layers,
        cross_layers, final_norm, head, lm_head, output_bias);
  }

 private:
  template <class... Parts>
  void all(Parts&... parts) {
    (move(parts), ...);
  }
  template <class T>
  void move(std::optional<T>& part) {
    if (part) move(*part);
  }
  template <class T>
  void move(std::vector<T>& parts) {
    for (T& part : parts) move(part);
  }

  void move(LayerWeights& layer) {
    auto& [attention_norm, attention, recurrence, attention_output_norm, mlp_norm, mlp, experts, mlp_output_norm,
           dense_output_norm, expert_norm, expert_output_norm, input, streams, scale] = layer;
    (void)scale;
    all(attention_norm, attention, recurrence, attention_output_norm, mlp_norm, mlp, experts, mlp_output_norm,
        dense_output_norm, expert_norm, expert_output_norm, input, streams);
  }

  void move(AttentionWeights& attention) {
    auto& [qkv, latent, q_norm, k_norm, sinks, distance_biases, o] = attention;
    all(qkv, latent, q_norm, k_norm, sinks, distance_biases, o);
  }

  void move(LatentWeights& latent) {
    auto& [q_down, q_down_norm, q, kv_down, kv_down_norm, k_up, v_up, indexer] = latent;
    all(q_down, q_down_norm, q, kv_down, kv_down_norm, k_up, v_up, indexer);
  }

  void move(IndexerWeights& indexer) {
    auto& [queries, keys, key_norm, heads] = indexer;
    all(queries, keys, key_norm, heads);
  }

  void move(RecurrenceWeights& recurrence) {
    auto& [in, gates, decay_down, decay_up, gate_down, gate_up, conv, conv_bias, a_log, dt_bias, skip, norm, out] =
        recurrence;
    all(in, gates, decay_down, decay_up, gate_down, gate_up, conv, conv_bias, a_log, dt_bias, skip, norm, out);
  }

  void move(MlpWeights& mlp) {
    auto& [up, down, xielu, cut] = mlp;
    (void)xielu, (void)cut;
    all(up, down);
  }

  void move(ExpertWeights& weights) {
    auto& [router, router_norm, correction, scales, arena, experts, shared, shared_gate] = weights;
    all(router, router_norm, correction, scales, shared_gate);
    std::vector<LinearWeight*> views;
    for (std::vector<ExpertWeight>* list : {&experts, &shared}) {
      for (ExpertWeight& expert : *list) views.insert(views.end(), {&expert.gate_up, &expert.down});
    }
    arena.move([this](AlignedBuffer& chunk) { move(chunk); }, views);
  }

  void move(LayerInputWeights& input) {
    auto& [gate, project, norm] = input;
    all(gate, project, norm);
  }

  void move(StreamWeights& streams) {
    auto& [router_norm, router, predict, correct, branch_down, branch_up, branch_norm] = streams;
    all(router_norm, router, predict, correct, branch_down, branch_up, branch_norm);
  }

  void move(CrossLayerWeights& layer) {
    auto& [attention_norm, q, kv, q_norm, k_norm, o, attention_gate, mlp_norm, mlp, mlp_gate] = layer;
    (void)attention_gate, (void)mlp_gate;
    all(attention_norm, q, kv, q_norm, k_norm, o, mlp_norm, mlp);
  }

  void move(HeadWeights& head) {
    auto& [join, embedding_norm, hidden_norm] = head;
    all(join, embedding_norm, hidden_norm);
  }

  void move(InputTableWeights& inputs) {
    auto& [table, project, norm] = inputs;
    all(table, project, norm);
  }

  void move(NormStorage& norm) {
    auto& [weight, bias, view] = norm;
    all(weight, bias);
    view.weight = weight.as<float>();
    view.bias = bias.as<float>();
  }

  void move(LinearStorage& linear) {
    all(linear.data, linear.scales, linear.zeros, linear.mins, linear.input_order, linear.block_scales,
        linear.output_scales, linear.bias);
    linear.set_pointers();
    move(linear.for_images);
  }

  void move(AlignedBuffer& buffer) { move_buffer_(buffer); }

  std::function<void(AlignedBuffer&)> move_buffer_;
};

}  // namespace

void move_weights(Operators& ops, Weights& weights) {
  if (ops.shares_host_memory()) return;
  size_t total = 0;
  Mover([&](const AlignedBuffer& buffer) { total += buffer.size(); }).move(weights);
  ops.expect(total, MemoryUse::kWeights);
  Mover([&](AlignedBuffer& buffer) {
    if (buffer.size() == 0) return;
    AlignedBuffer there = ops.allocate(buffer.size(), MemoryUse::kWeights);
    ops.upload(buffer.as<void>(), buffer.size(), there.as<void>());
    buffer = std::move(there);
  }).move(weights);
}

}  // namespace turbomind
