#include "model/weights.h"

#include <exception>
#include <functional>
#include <mutex>

namespace turbomind {

namespace {

AlignedBuffer read_vector(const Checkpoint& checkpoint, const std::string& name, int size) {
  AlignedBuffer buffer(static_cast<size_t>(size) * sizeof(float));
  checkpoint.read<float>(name, {size}, buffer.as<float>());
  return buffer;
}

LinearStorage read_matrix(const Checkpoint& checkpoint, const std::string& name, int out_features, int in_features,
                          DType dtype) {
  LinearStorage storage;
  storage.data = AlignedBuffer(static_cast<size_t>(out_features) * in_features * byte_size(dtype));
  if (dtype == DType::kFloat32) {
    checkpoint.read<float>(name, {out_features, in_features}, storage.data.as<float>());
  } else {
    checkpoint.read<bf16>(name, {out_features, in_features}, storage.data.as<bf16>());
  }
  storage.view = {storage.data.as<void>(), dtype, out_features, in_features, nullptr};
  return storage;
}

LinearStorage read_linear(const Checkpoint& checkpoint, const std::string& name, int out_features, int in_features,
                          DType dtype, bool has_bias) {
  LinearStorage storage = read_matrix(checkpoint, name + ".weight", out_features, in_features, dtype);
  if (has_bias) {
    storage.bias = read_vector(checkpoint, name + ".bias", out_features);
    storage.view.bias = storage.bias.as<float>();
  }
  return storage;
}

LayerWeights read_layer(const ModelSpec& spec, const Checkpoint& checkpoint, int index, DType dtype) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const int query_size = spec.num_heads * spec.head_dim;
  const int qkv_size = query_size + 2 * spec.num_kv_heads * spec.head_dim;
  LayerWeights layer;
  layer.attention_norm = read_vector(checkpoint, prefix + "attention_norm.weight", spec.hidden_size);
  layer.qkv = read_linear(checkpoint, prefix + "attention.qkv", qkv_size, spec.hidden_size, dtype, spec.qkv_bias);
  layer.o = read_linear(checkpoint, prefix + "attention.o", spec.hidden_size, query_size, dtype, spec.o_bias);
  layer.mlp_norm = read_vector(checkpoint, prefix + "mlp_norm.weight", spec.hidden_size);
  layer.gate_up =
      read_linear(checkpoint, prefix + "mlp.gate_up", 2 * spec.intermediate_size, spec.hidden_size, dtype, false);
  layer.down = read_linear(checkpoint, prefix + "mlp.down", spec.hidden_size, spec.intermediate_size, dtype, false);
  return layer;
}

// parallel_for whose bodies may throw; the first exception is rethrown here.
void parallel_for_throwing(ThreadPool& pool, int count, const std::function<void(int)>& body) {
  std::exception_ptr failure;
  std::mutex mu;
  pool.parallel_for(count, [&](int index) {
    try {
      body(index);
    } catch (...) {
      const std::lock_guard lock(mu);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

Weights Weights::load(const ModelSpec& spec, const Checkpoint& checkpoint, DType dtype, ThreadPool& pool) {
  Weights weights;
  weights.dtype = dtype;
  weights.final_norm = read_vector(checkpoint, "final_norm.weight", spec.hidden_size);
  weights.layers.resize(static_cast<size_t>(spec.num_layers));
  parallel_for_throwing(pool, spec.num_layers + 2, [&](int index) {
    if (index < spec.num_layers) {
      weights.layers[static_cast<size_t>(index)] = read_layer(spec, checkpoint, index, dtype);
    } else if (index == spec.num_layers) {
      weights.embedding = read_matrix(checkpoint, "token_embedding", spec.vocab_size, spec.hidden_size, dtype);
    } else if (!spec.tied_embeddings) {
      weights.lm_head = read_linear(checkpoint, "lm_head", spec.vocab_size, spec.hidden_size, dtype, false);
    }
  });
  return weights;
}

}  // namespace turbomind
