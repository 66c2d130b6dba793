#include "model/move_weights.h"

#include <functional>
#include <utility>
#include <vector>

namespace turbomind {

namespace {

// Puts other memory in the place of each buffer of the weights.
class Mover {
 public:
  explicit Mover(std::function<void(AlignedBuffer&)> move_buffer) : move_buffer_(std::move(move_buffer)) {}

  void move(Weights& weights) {
    move(weights.embedding);
    move(weights.position_embedding);
    move(weights.token_types);
    move(weights.embedding_norm);
    if (weights.layer_inputs) move(*weights.layer_inputs);
    for (LinearStorage& linear : weights.stream_makers) move(linear);
    for (LinearStorage& linear : weights.stream_readers) move(linear);
    for (LayerWeights& layer : weights.layers) move(layer);
    for (CrossLayerWeights& layer : weights.cross_layers) move(layer);
    move(weights.final_norm);
    move(weights.lm_head);
    move(weights.output_bias);
  }

 private:
  void move(LayerWeights& layer) {
    move(layer.attention_norm);
    move(layer.attention.qkv);
    if (layer.attention.latent) move(*layer.attention.latent);
    move(layer.attention.q_norm);
    move(layer.attention.k_norm);
    move(layer.attention.sinks);
    move(layer.attention.distance_biases);
    move(layer.attention.o);
    if (layer.recurrence) move(*layer.recurrence);
    move(layer.attention_output_norm);
    move(layer.mlp_norm);
    move(layer.mlp.up);
    move(layer.mlp.down);
    if (layer.experts) move(*layer.experts);
    for (NormStorage* norm :
         {&layer.mlp_output_norm, &layer.dense_output_norm, &layer.expert_norm, &layer.expert_output_norm}) {
      move(*norm);
    }
    if (layer.streams) move(*layer.streams);
    if (!layer.input) return;
    move(layer.input->gate);
    move(layer.input->project);
    move(layer.input->norm);
  }

  void move(StreamWeights& streams) {
    for (NormStorage* norm : {&streams.router_norm, &streams.branch_norm}) move(*norm);
    for (LinearStorage* linear :
         {&streams.router, &streams.predict, &streams.correct, &streams.branch_down, &streams.branch_up}) {
      move(*linear);
    }
  }

  void move(InputTableWeights& inputs) {
    move(inputs.table);
    move(inputs.project);
    move(inputs.norm);
  }

  void move(CrossLayerWeights& layer) {
    for (NormStorage* norm : {&layer.attention_norm, &layer.q_norm, &layer.k_norm, &layer.mlp_norm}) move(*norm);
    for (LinearStorage* linear : {&layer.q, &layer.kv, &layer.o, &layer.mlp.up, &layer.mlp.down}) move(*linear);
  }

  void move(RecurrenceWeights& recurrence) {
    for (LinearStorage* linear : {&recurrence.in, &recurrence.gates, &recurrence.decay_down, &recurrence.decay_up,
                                  &recurrence.gate_down, &recurrence.gate_up, &recurrence.out})
      move(*linear);
    for (AlignedBuffer* part :
         {&recurrence.conv, &recurrence.conv_bias, &recurrence.a_log, &recurrence.dt_bias, &recurrence.skip})
      move(*part);
    move(recurrence.norm);
  }

  void move(LatentWeights& latent) {
    for (LinearStorage* linear : {&latent.q_down, &latent.q, &latent.kv_down, &latent.k_up, &latent.v_up})
      move(*linear);
    move(latent.q_down_norm);
    move(latent.kv_down_norm);
  }

  void move(ExpertWeights& experts) {
    move(experts.router);
    move(experts.router_norm);
    move(experts.correction);
    move(experts.scales);
    move(experts.shared_gate);
    std::vector<LinearWeight*> views;
    for (std::vector<ExpertWeight>* list : {&experts.experts, &experts.shared}) {
      for (ExpertWeight& expert : *list) views.insert(views.end(), {&expert.gate_up, &expert.down});
    }
    experts.arena.move([this](AlignedBuffer& chunk) { move(chunk); }, views);
  }

  void move(NormStorage& norm) {
    move(norm.weight);
    move(norm.bias);
    norm.view.weight = norm.weight.as<float>();
    norm.view.bias = norm.bias.as<float>();
  }

  void move(LinearStorage& linear) {
    for (AlignedBuffer* part : {&linear.data, &linear.scales, &linear.zeros, &linear.mins, &linear.input_order,
                                &linear.block_scales, &linear.output_scales, &linear.bias}) {
      move(*part);
    }
    linear.set_pointers();
    for (LinearStorage& own : linear.for_images) move(own);
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
