#include "model/weights.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <mutex>

#include "kernels/packed_weight.h"

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
  const WeightFormat format = dtype == DType::kFloat32 ? WeightFormat::kFloat32 : WeightFormat::kBFloat16;
  storage.view = {storage.data.as<void>(), format, out_features, in_features};
  return storage;
}

// Runs body(index) for each index; here or, for work that is not inside a parallel loop already, on a pool.
using Loop = std::function<void(int count, const std::function<void(int)>& body)>;

void in_order(int count, const std::function<void(int)>& body) {
  for (int index = 0; index < count; ++index) body(index);
}

LinearStorage round_matrix(const float* w, int out_features, int in_features, int bits, int group, const Loop& loop) {
  const PackedShape shape{out_features, in_features, bits, group};
  LinearStorage storage;
  storage.data = AlignedBuffer(shape.code_bytes());
  storage.scales = AlignedBuffer(shape.scale_count() * sizeof(half));
  loop(shape.tiles(), [&](int tile) {
    const int first = tile * kTileOutputs;
    const size_t groups = static_cast<size_t>(tile) * shape.groups();
    quantize_and_pack_tile(
        shape, w + static_cast<size_t>(first) * in_features, std::min(kTileOutputs, out_features - first),
        storage.data.as<uint8_t>() + groups * shape.group_bytes(), storage.scales.as<half>() + groups * kTileOutputs);
  });
  storage.view = {storage.data.as<void>(),
                  bits == 8 ? WeightFormat::kInt8 : WeightFormat::kInt4,
                  out_features,
                  in_features,
                  nullptr,
                  group,
                  storage.scales.as<half>()};
  return storage;
}

LinearStorage read_linear(const Checkpoint& checkpoint, const std::string& name, int out_features, int in_features,
                          const WeightOptions& options, bool has_bias) {
  LinearStorage storage;
  if (options.bits == 0) {
    storage = read_matrix(checkpoint, name + ".weight", out_features, in_features, options.dtype);
  } else {
    const LinearStorage whole = read_matrix(checkpoint, name + ".weight", out_features, in_features, DType::kFloat32);
    storage = round_matrix(whole.data.as<float>(), out_features, in_features, options.bits, options.group, in_order);
  }
  if (has_bias) {
    storage.bias = read_vector(checkpoint, name + ".bias", out_features);
    storage.view.bias = storage.bias.as<float>();
  }
  return storage;
}

LayerWeights read_layer(const ModelSpec& spec, const Checkpoint& checkpoint, int index, const WeightOptions& options) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const int query_size = spec.num_heads * spec.head_dim;
  const int qkv_size = query_size + 2 * spec.num_kv_heads * spec.head_dim;
  LayerWeights layer;
  layer.attention_norm = read_vector(checkpoint, prefix + "attention_norm.weight", spec.hidden_size);
  layer.qkv =
      read_linear(checkpoint, prefix + "attention.qkv", qkv_size, spec.hidden_size, options, spec.attention.qkv_bias);
  layer.o =
      read_linear(checkpoint, prefix + "attention.o", spec.hidden_size, query_size, options, spec.attention.o_bias);
  layer.mlp_norm = read_vector(checkpoint, prefix + "mlp_norm.weight", spec.hidden_size);
  layer.gate_up =
      read_linear(checkpoint, prefix + "mlp.gate_up", 2 * spec.intermediate_size, spec.hidden_size, options, false);
  layer.down = read_linear(checkpoint, prefix + "mlp.down", spec.hidden_size, spec.intermediate_size, options, false);
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

Weights Weights::load(const ModelSpec& spec, const Checkpoint& checkpoint, const WeightOptions& options,
                      ThreadPool& pool) {
  Weights weights;
  weights.dtype = options.dtype;
  weights.final_norm = read_vector(checkpoint, "final_norm.weight", spec.hidden_size);
  weights.layers.resize(static_cast<size_t>(spec.num_layers));
  parallel_for_throwing(pool, spec.num_layers + 1, [&](int index) {
    if (index < spec.num_layers) {
      weights.layers[static_cast<size_t>(index)] = read_layer(spec, checkpoint, index, options);
    } else {
      weights.embedding = read_matrix(checkpoint, "token_embedding", spec.vocab_size, spec.hidden_size, options.dtype);
    }
  });
  const std::string output_name = spec.tied_embeddings ? "token_embedding" : "lm_head.weight";
  if (options.bits == 0) {
    if (!spec.tied_embeddings) {
      weights.lm_head = read_matrix(checkpoint, output_name, spec.vocab_size, spec.hidden_size, options.dtype);
    }
  } else {
    // Errors of the output layer fall on the choice of the token directly; it keeps 8 bits.
    const LinearStorage whole =
        read_matrix(checkpoint, output_name, spec.vocab_size, spec.hidden_size, DType::kFloat32);
    weights.lm_head = round_matrix(whole.data.as<float>(), spec.vocab_size, spec.hidden_size, 8, options.group,
                                   [&](int count, const auto& body) { parallel_for_throwing(pool, count, body); });
  }
  return weights;
}

}  // namespace turbomind
