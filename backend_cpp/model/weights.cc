#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "model/step/image_tokens.h"
#include "weights/manifest_value.h"

namespace turbomind {

namespace {

// `eps`: in place of the spec's, unless 0.
NormStorage read_norm(const ModelSpec& spec, const WeightReader& read, const std::string& name, float eps = 0) {
  NormSpec norm = spec.norm;
  if (eps > 0) norm.eps = eps;
  return NormStorage::load(read, name, spec.hidden_size, norm, norm.bias);
}

// Stored in front of the softplus they go through; the negative one is above the linear one.
XieluFactors read_xielu(const WeightReader& read, const std::string& prefix) {
  const auto stored = [&](const char* name) { return *read.vector(prefix + name, 1).as<float>(); };
  const auto softplus = [](float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); };
  const float linear = stored("xielu.linear");
  return {softplus(stored("xielu.positive")), linear + softplus(stored("xielu.negative")), linear};
}

// Further inputs read the stream times factors, which become those of the gate's columns.
LinearStorage read_input_gate(const ModelSpec& spec, const WeightReader& read, const std::string& prefix) {
  const int rows = spec.layer_input->size;
  const int size = spec.hidden_size;
  if (!spec.streams) return read.linear(prefix + "input.gate", rows, size, false);
  LinearStorage gate = read.matrix(prefix + "input.gate.weight", rows, size, DType::kFloat32);
  const AlignedBuffer factors = read.vector(prefix + "streams.output_factors", size);
  for (int i = 0; i < rows * size; ++i) gate.data.as<float>()[i] *= factors.as<float>()[i % size];
  return gate;
}

StreamWeights read_streams(const ModelSpec& spec, const WeightReader& read, const std::string& prefix) {
  const int count = spec.streams->count;
  const int size = spec.hidden_size;
  const int rank = spec.streams->branch_rank;
  const auto norm = [&](const char* name) { return read_norm(spec, read, prefix + name); };
  const auto exact = [&](const char* name, int rows, int columns) {
    return read.matrix(prefix + name + ".weight", rows, columns, DType::kFloat32);
  };
  return {norm("router_norm"),
          exact("router", count, size),
          exact("predict", count * count, count),
          exact("correct", count, count),
          read.linear(prefix + "branch_down", rank, size, false),
          read.linear(prefix + "branch_up", size, rank, false),
          norm("branch_norm")};
}

HyperWeights read_hyper(const ModelSpec& spec, const WeightReader& read, const std::string& prefix, bool adds) {
  const int width = spec.hyper_connections->count * spec.hidden_size;
  const int rank = spec.hyper_connections->rank;
  if (rank == 0) {
    const int count = spec.hyper_connections->count;
    const bool mixes = adds && spec.hyper_connections->mixing_iterations > 0;
    const int outputs = (adds ? 2 : 1) * count + (mixes ? count * count : 0);
    const AlignedBuffer scales = read.vector(prefix + "scales", mixes ? 3 : adds ? 2 : 1);
    return {NormStorage::load(read, prefix + "norm", width, {spec.norm.eps}, false),
            {},
            {},
            read.matrix(prefix + "weights.weight", outputs, width, DType::kFloat32),
            read.vector(prefix + "weights.bias", outputs),
            scales.as<float>()[0],
            scales.as<float>()[adds],
            scales.as<float>()[mixes ? 2 : 0]};
  }
  return {NormStorage::load(read, prefix + "norm", width, spec.norm, false),
          read.linear(prefix + "down", rank, width, false),
          read.linear(prefix + "up", width, rank, false),
          adds ? read.matrix(prefix + "add.weight", spec.hyper_connections->count, width, DType::kFloat32)
               : LinearStorage{},
          {}};
}

NgramWeights read_ngrams(const ModelSpec& spec, const WeightReader& read, const std::string& prefix, int index) {
  const NgramsSpec& ngrams = *spec.ngrams;
  const int width = spec.hyper_connections->count * spec.hidden_size;
  const auto norm = [&](const char* name) { return NormStorage::load(read, prefix + name, width, spec.norm, false); };
  NgramWeights weights{
      read.stored(prefix + "table", ngrams.table_rows[static_cast<size_t>(index)],
                  ngrams.width / ((ngrams.size - 1) * ngrams.heads)),
      read.linear(prefix + "keys", width, ngrams.width, false),
      read.linear(prefix + "values", spec.hidden_size, ngrams.width, false),
      norm("key_norm"),
      norm("query_norm"),
      norm("conv_norm"),
      AlignedBuffer(static_cast<size_t>(width) * static_cast<size_t>(conv_reach(ngrams)) * sizeof(float))};
  const LinearStorage taps = read.matrix(prefix + "conv", width, ngrams.conv_kernel, DType::kFloat32);
  auto* conv = weights.conv.as<float>();
  std::fill_n(conv, weights.conv.size() / sizeof(float), 0.0F);
  for (int channel = 0; channel < width; ++channel) {
    for (int tap = 0; tap < ngrams.conv_kernel; ++tap) {
      conv[channel * conv_reach(ngrams) + tap * ngrams.size] =
          taps.data.as<float>()[channel * ngrams.conv_kernel + tap];
    }
  }
  return weights;
}

// `divided`: the channels that a rank has.
MlpWeights read_mlp(const Shard& shard, const WeightReader& read, const std::string& prefix, const Slice& divided,
                    float cut = 0) {
  const int hidden = shard.spec.hidden_size;
  const Slice channels = read.as_stored(prefix + "down", hidden, divided);
  const bool bias = shard.spec.mlp.bias;
  MlpWeights mlp{shard.spec.mlp.is_gated
                     ? read.linear(prefix + "gate_up", Slice::joined({channels, channels}), hidden, bias)
                     : read.linear(prefix + "up", channels, hidden, bias),
                 read.linear(prefix + "down", hidden, channels, bias || shard.spec.mlp.down_bias),
                 shard.spec.mlp.is_xielu ? read_xielu(read, prefix) : XieluFactors{}, cut};
  const bool has_images = shard.spec.images && shard.spec.images->own_mlp;
  std::vector<Slice> parts(shard.spec.mlp.is_gated ? 2 : 1, channels);
  read_for_images(shard.spec, read, mlp.up, has_images, bias, parts);
  read_for_images(shard.spec, read, mlp.down, has_images, bias || shard.spec.mlp.down_bias, {hidden});
  return mlp;
}

void read_mixers(const Shard& shard, const WeightReader& read, const std::string& prefix, int index,
                 LayerWeights& layer) {
  const ModelSpec& spec = shard.spec;
  const BlockSpec& block = block_of(spec, index);
  const bool is_heads_first = spec.head && index == 0;
  const bool is_doubled = (is_heads_first && spec.head->kind == HeadKind::kEagle3) || spec.shared_blocks;
  const bool skips_norm = block.skips_first_norm && index == 0;
  const bool has_norm = is_heads_first ? has_outer_norms(*spec.head) : block.has_input_norms && !skips_norm;
  if (has_norm) layer.attention_norm = read_norm(spec, read, prefix + "attention_norm");
  if (has_recurrence(spec, index)) {
    layer.recurrence = RecurrenceWeights::load(shard, read, prefix + "recurrence.");
  }
  if (has_attention(spec, index)) {
    layer.attention =
        AttentionWeights::load(shard, read, prefix + "attention.", index, (is_doubled ? 2 : 1) * spec.hidden_size);
  }
  if (has_compressed_attention(spec, index)) {
    layer.compressed = CompressedAttentionWeights::load(spec, read, prefix + "compressed.", index);
  }
  if (spec.shared_blocks && has_attention(spec, index)) {
    layer.shared = {NormStorage::load(read, prefix + "shared.norm", 2 * spec.hidden_size, spec.norm, spec.norm.bias),
                    read.linear(prefix + "shared.project", spec.hidden_size, spec.hidden_size, false)};
  }
  if (block.has_output_norms) {
    layer.attention_output_norm = read_norm(spec, read, prefix + "attention_output_norm", block.output_norm_eps);
  }
}

void read_mlps(const Shard& shard, const WeightReader& read, const std::string& prefix, int index,
               LayerWeights& layer) {
  const ModelSpec& spec = shard.spec;
  const BlockSpec& block = block_of(spec, index);
  const auto norm = [&](const char* name) { return read_norm(spec, read, prefix + name); };
  if (block.has_input_norms && !block.shares_norm) layer.mlp_norm = norm("mlp_norm");
  if (has_experts(spec, index)) layer.experts = ExpertWeights::load(shard, read, prefix + "moe.", index);
  if (has_dense_mlp(spec, index)) {
    layer.mlp = read_mlp(shard, read, prefix + "mlp.", shard.channels[static_cast<size_t>(index)],
                         spec.mlp.cuts.empty() ? 0 : spec.mlp.cuts[static_cast<size_t>(index)]);
  }
  if (block.has_output_norms) {
    layer.mlp_output_norm = read_norm(spec, read, prefix + "mlp_output_norm", block.output_norm_eps);
  }
  if (has_experts(spec, index) && spec.moe->is_alongside_mlp) {
    layer.dense_output_norm = norm("dense_output_norm");
    layer.expert_norm = norm("expert_norm");
    layer.expert_output_norm = norm("expert_output_norm");
  }
}

LayerWeights read_layer(const Shard& shard, const WeightReader& read, int index) {
  const ModelSpec& spec = shard.spec;
  const std::string prefix = "layers." + std::to_string(index) + ".";
  LayerWeights layer;
  if (has_mixer(spec, index)) read_mixers(shard, read, prefix, index, layer);
  if (!has_mlp(spec, index)) return layer;
  read_mlps(shard, read, prefix, index, layer);
  if (spec.layer_input) {
    layer.input = {read_input_gate(spec, read, prefix),
                   read.linear(prefix + "input.project", spec.hidden_size, spec.layer_input->size, false),
                   read_norm(spec, read, prefix + "input.norm")};
  }
  if (spec.streams) layer.streams = read_streams(spec, read, prefix + "streams.");
  if (spec.hyper_connections) {
    layer.mixer_hyper = read_hyper(spec, read, prefix + "hyper.mixer.", true);
    layer.mlp_hyper = read_hyper(spec, read, prefix + "hyper.mlp.", true);
  }
  if (const int ngrams = ngrams_of(spec, index); ngrams >= 0) {
    layer.ngrams = read_ngrams(spec, read, prefix + "ngrams.", ngrams);
  }
  if (block_of(spec, index).has_layer_scale) layer.scale = *read.vector(prefix + "scale", 1).as<float>();
  return layer;
}

InputTableWeights read_input_table(const ModelSpec& spec, const WeightReader& read) {
  const int size = spec.layer_input->size;
  const int width = spec.num_layers * size;
  return {read.table("layer_inputs.table", spec.vocab_size, width, in_order),
          read.linear("layer_inputs.project", width, spec.hidden_size, false),
          NormStorage::load(read, "layer_inputs.norm", size, spec.norm, spec.norm.bias)};
}

HeadWeights read_head(const ModelSpec& spec, const WeightReader& read) {
  const HeadSpec& head = *spec.head;
  const bool is_eagle3 = head.kind == HeadKind::kEagle3;
  HeadWeights weights;
  weights.join = read.linear("head.join", spec.hidden_size,
                             is_eagle3 ? width_of(head) : spec.hidden_size + head.target_hidden_size, head.bias);
  const auto norm = [&](const char* name, int size) { return NormStorage::load(read, name, size, spec.norm, false); };
  if (head.kind == HeadKind::kMtp) weights.embedding_norm = norm("head.embedding_norm", spec.hidden_size);
  if (head.kind == HeadKind::kMtp) weights.hidden_norm = norm("head.hidden_norm", head.target_hidden_size);
  if (is_eagle3) weights.hidden_norm = norm("head.hidden_norm", spec.hidden_size);
  return weights;
}

CrossLayerWeights read_cross_layer(const Shard& shard, const WeightReader& read, int index) {
  const ModelSpec& spec = shard.spec;
  const std::string prefix = "cross_layers." + std::to_string(index) + ".";
  const Slice queries = shard.attention.front().queries.times(spec.head_dim);
  const Slice keys = shard.attention.front().kv.times(spec.head_dim);
  const auto norm = [&](const char* name, int size) {
    return NormStorage::load(read, prefix + name, size, spec.norm, false);
  };
  // Gates are stored in front of the tanh they go through.
  const auto gate = [&](const char* name) { return std::tanh(*read.vector(prefix + name, 1).as<float>()); };
  CrossLayerWeights layer;
  layer.attention_norm = norm("attention_norm", spec.hidden_size);
  layer.q = read.linear(prefix + "attention.q", queries, spec.hidden_size, false);
  layer.kv = read.linear(prefix + "attention.kv", Slice::joined({keys, keys}), spec.hidden_size, false);
  layer.q_norm = norm("attention.q_norm", spec.head_dim);
  layer.k_norm = norm("attention.k_norm", spec.head_dim);
  layer.o = read.linear(prefix + "attention.o", spec.hidden_size, queries, false);
  layer.attention_gate = gate("attention.gate");
  layer.mlp_norm = norm("mlp_norm", spec.hidden_size);
  layer.mlp = read_mlp(shard, read, prefix + "mlp.", shard.channels.front());
  layer.mlp_gate = gate("mlp.gate");
  return layer;
}

// Divides each row of a float32 matrix by its length, as torch.nn.functional.normalize does.
void normalize_rows(const LinearStorage& matrix) {
  const int size = matrix.view.in_features;
  for (int row = 0; row < matrix.view.out_features; ++row) {
    float* w = matrix.data.as<float>() + static_cast<size_t>(row) * size;
    double squares = 0;
    for (int i = 0; i < size; ++i) squares += static_cast<double>(w[i]) * w[i];
    const auto factor = static_cast<float>(1 / std::max(std::sqrt(squares), 1e-12));
    for (int i = 0; i < size; ++i) w[i] *= factor;
  }
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

Loop loop_on(ThreadPool& pool, const WeightOptions& options) {
  if (options.only_sizes) return skip_all;
  return [&pool](int count, const std::function<void(int)>& body) { parallel_for_throwing(pool, count, body); };
}

// Empty where the token embedding is the output layer as it is.
LinearStorage read_output_layer(const Shard& shard, const Checkpoint& checkpoint, const WeightReader& read,
                                const LinearStorage& embedding, ThreadPool& pool) {
  const ModelSpec& spec = shard.spec;
  const std::string name = spec.tied_embeddings ? "token_embedding" : "lm_head.weight";
  const WeightOptions& options = read.options();
  const Loop on_pool = loop_on(pool, options);
  if (!spec.output.normalizes_weight) {
    if (spec.tied_embeddings && embedding.view.is_packed() && shard.vocab.is_whole()) return {};
    const std::vector<ManifestValue> parts = checkpoint.parts(name, {shard.vocab, spec.hidden_size});
    if (can_pack(parts, options.takes_gguf_blocks)) return pack_quantized(parts, options.takes_gguf_blocks, on_pool);
    if (options.bits == 0 && spec.tied_embeddings) return {};
    if (options.bits == 0) return read.matrix(name, shard.vocab, spec.hidden_size, options.dtype, on_pool);
  }
  LinearStorage exact = read.matrix(name, shard.vocab, spec.hidden_size, DType::kFloat32, on_pool);
  if (spec.output.normalizes_weight && !options.only_sizes) normalize_rows(exact);
  if (options.bits == 0) return exact;
  // Errors of the output layer fall on the choice of the token directly; it keeps 8 bits.
  return round_matrix(exact.data.as<float>(), shard.vocab.size(), spec.hidden_size, 8, options.group, on_pool);
}

// Makes tiles of the output layer, or of the embedding that serves as one for all tokens.
void tile_output_layer(const Shard& shard, const WeightReader& read, ThreadPool& pool, Weights& weights) {
  const bool is_shared = weights.lm_head.view.data == nullptr;
  if (is_shared && !shard.vocab.is_whole()) return;
  read.tile(is_shared ? weights.embedding : weights.lm_head, loop_on(pool, read.options()));
}

// Adapters add to the dense layers of attention, recurrences and MLPs that are made of whole rows. `has_distances`:
// vectors of distances go through qkv too, once for all adapters.
std::vector<AdaptedLayer> find_adapted_layers(std::vector<LayerWeights>& layers, const Checkpoint& checkpoint,
                                              bool has_distances) {
  std::vector<AdaptedLayer> adapted;
  for (LayerWeights& layer : layers) {
    std::vector<LinearStorage*> linears{&layer.attention.o, &layer.mlp.up, &layer.mlp.down};
    if (!has_distances) linears.push_back(&layer.attention.qkv);
    if (layer.shared) linears.push_back(&layer.shared->project);
    if (std::optional<RecurrenceWeights>& layer_recurrence = layer.recurrence) {
      linears.insert(linears.end(), {&layer_recurrence->in, &layer_recurrence->gates, &layer_recurrence->out});
    }
    for (LinearStorage* linear : linears) {
      if (linear->name.empty()) continue;
      RowSources rows = checkpoint.row_sources(linear->name + ".weight");
      if (rows.runs.empty()) continue;
      linear->adapted_layer = static_cast<int>(adapted.size());
      adapted.push_back({linear->outputs, linear->inputs, std::move(rows)});
    }
  }
  return adapted;
}

NormStorage read_final_norm(const ModelSpec& spec, const WeightReader& read) {
  NormSpec norm = spec.norm;
  if (spec.output.has_plain_norm) norm.offset = 0;
  return NormStorage::load(read, "final_norm", spec.hidden_size, norm, norm.bias);
}

void read_distances(const ModelSpec& spec, const WeightReader& read, Weights& weights) {
  const std::vector<int>& buckets = spec.attention.distance_buckets;
  if (buckets.empty()) return;
  weights.distance_norm = read_norm(spec, read, "distance_norm");
  weights.distance_embedding = read.matrix("distance_embedding", buckets.back() + 1, spec.hidden_size, DType::kFloat32);
}

}  // namespace

LinearWeight Weights::output_layer() const {
  LinearWeight layer = lm_head.view;
  if (layer.data == nullptr) {
    layer = embedding.view;
    const size_t row_bytes = embedding.data.size() / static_cast<size_t>(layer.out_features);
    layer.data = embedding.data.as<std::byte>() + static_cast<size_t>(vocab.begin) * row_bytes;
    layer.out_features = vocab.end - vocab.begin;
  }
  layer.bias = output_bias.as<float>();
  return layer;
}

Weights Weights::load(const Shard& shard, const Checkpoint& checkpoint, const WeightOptions& options,
                      ThreadPool& pool) {
  const ModelSpec& spec = shard.spec;
  const WeightReader read(checkpoint, options);
  Weights weights;
  if (spec.head) weights.head = read_head(spec, read);
  if (has_final_norm(spec)) weights.final_norm = read_final_norm(spec, read);
  if (spec.has_embedding_norm) weights.embedding_norm = read_norm(spec, read, "embedding_norm");
  read_distances(spec, read, weights);
  weights.layers.resize(static_cast<size_t>(spec.num_layers));
  weights.embedding = read.table("token_embedding", spec.vocab_size, spec.hidden_size, loop_on(pool, options));
  const int cross_layers = cross_layer_count(spec);
  weights.cross_layers.resize(static_cast<size_t>(cross_layers));
  parallel_for_throwing(pool, spec.num_layers + cross_layers + 1, [&](int index) {
    if (index < spec.num_layers) {
      weights.layers[static_cast<size_t>(index)] = read_layer(shard, read, index);
    } else if (index < spec.num_layers + cross_layers) {
      const int number = index - spec.num_layers;
      weights.cross_layers[static_cast<size_t>(number)] = read_cross_layer(shard, read, number);
    } else {
      if (spec.learned_positions > 0) {
        weights.position_embedding =
            read.matrix("position_embedding", spec.learned_positions, spec.hidden_size, options.dtype);
      }
      if (spec.encoder && spec.encoder->token_types > 0) {
        weights.token_types = read.matrix("token_types", spec.encoder->token_types, spec.hidden_size, options.dtype);
      }
      if (spec.hyper_connections && !spec.hyper_connections->ends_by_mean) {
        weights.hyper = read_hyper(spec, read, "hyper.", false);
      }
      if (spec.layer_input) weights.layer_inputs = read_input_table(spec, read);
      for (int i = 0; spec.streams && i + 1 < spec.streams->count; ++i) {
        const auto square = [&](const std::string& name) {
          return read.linear("streams." + name + "." + std::to_string(i), spec.hidden_size, spec.hidden_size, false);
        };
        weights.stream_makers.push_back(square("make"));
        weights.stream_readers.push_back(square("read"));
      }
    }
  });
  weights.vocab = shard.vocab.ranges().at(0);
  if (!spec.encoder) {
    weights.lm_head = read_output_layer(shard, checkpoint, read, weights.embedding, pool);
    tile_output_layer(shard, read, pool, weights);
  }
  weights.adapted_layers = find_adapted_layers(weights.layers, checkpoint, !spec.attention.distance_buckets.empty());
  if (spec.output.bias) weights.output_bias = read.vector("lm_head.bias", shard.vocab);
  return weights;
}

Weights Weights::outline(const ModelSpec& spec) {
  Weights weights;
  weights.layers.resize(static_cast<size_t>(spec.num_layers));
  weights.cross_layers.resize(static_cast<size_t>(cross_layer_count(spec)));
  for (int index = 0; index < spec.num_layers; ++index) {
    LayerWeights& layer = weights.layers[static_cast<size_t>(index)];
    if (has_recurrence(spec, index)) layer.recurrence.emplace();
    if (has_compressed_attention(spec, index)) {
      const Compression kind = spec.compressed_attention->layers[static_cast<size_t>(index)];
      CompressedAttentionWeights& compressed = layer.compressed.emplace();
      if (kind != Compression::kNone) compressed.compressor.emplace();
      if (kind == Compression::kSparse) compressed.indexer.emplace();
    }
    if (spec.shared_blocks && has_attention(spec, index)) layer.shared.emplace();
    if (!has_attention(spec, index) || !spec.attention.mla) continue;
    const auto& indexer = spec.attention.mla->indexer;
    LatentWeights& latent = layer.attention.latent.emplace();
    if (indexer && indexer->layers[static_cast<size_t>(index)]) latent.indexer.emplace();
  }
  return weights;
}

void Weights::adapt_embeddings(const ModelSpec& spec, const Checkpoint& checkpoint) {
  const auto adapt = [&](LinearStorage& table, const char* name, int count) {
    RowSources rows = checkpoint.row_sources(name);
    if (table.data.size() == 0 || rows.modules.size() != 1 || rows.runs.size() != 1) return;
    const RowSources::Module& module = rows.modules.front();
    if (rows.runs.front().first != 0 || module.out_features != count || module.in_features != spec.hidden_size) return;
    // A linear layer of rows that have a single 1.
    table.adapted_layer = static_cast<int>(adapted_layers.size());
    adapted_layers.push_back(
        {spec.hidden_size, count, {{{module.name, spec.hidden_size, count}}, {{0, 0, spec.hidden_size}}}});
  };
  if (spec.embedding_scale == 1) adapt(embedding, "token_embedding", spec.vocab_size);
  if (spec.encoder) adapt(token_types, "token_types", spec.encoder->token_types);
}

}  // namespace turbomind
