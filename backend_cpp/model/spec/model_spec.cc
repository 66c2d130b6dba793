#include "model/spec/model_spec.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "kernels/recurrence.h"
#include "model/spec/spec_reader.h"

namespace turbomind {

namespace {

constexpr int kFormat = 2;

// Contradictions that would read or write beyond a buffer, or mean a combination that no kernel has. Sizes in a
// checkpoint's files are checked before, when it is described (lmdeploy/turbomind/spec/model.py).

void reject_if(bool is_so, const char* problem) {
  if (is_so) throw invalid_argument(problem);
}

void check(const MoeSpec& moe) {
  const RouterSpec& router = moe.router;
  reject_if(moe.num_experts % router.groups != 0 || router.top_groups > router.groups ||
                moe.experts_per_token > moe.num_experts / router.groups * router.top_groups,
            "moe.experts_per_token must be at most the experts to choose from");
}

// Layers that look at images are plain ones, whose keys and values fit into the blocks of the others.
void check_images(const ModelSpec& spec) {
  reject_if(spec.images->deepstack_layers > spec.num_layers, "images.deepstack_layers must be at most num_layers");
  const std::vector<int>& layers = spec.images->cross_layers;
  if (layers.empty()) return;
  reject_if(!std::ranges::is_sorted(layers) || layers.back() >= spec.num_layers ||
                static_cast<int>(layers.size()) > spec.num_layers,
            "images.cross_layers must be layers, ascending, and at most num_layers");
  if (spec.attention.mla || !spec.attentions.empty() || spec.moe || spec.block.is_parallel ||
      spec.block.has_output_norms || spec.block.residual_scale != 1 || spec.images->deepstack_layers > 0 ||
      spec.images->whole_rows > 0 ||
      std::ranges::any_of(spec.attention.windows, [](int window) { return window > 0; })) {
    throw invalid_argument(
        "images.cross_layers is incompatible with attention.mla, attention.windows, attentions, moe, other blocks than "
        "sequential ones, or other images.*");
  }
}

void check_own_weights(const ModelSpec& spec) {
  if (!has_own_image_weights(spec)) return;
  reject_if(spec.moe || spec.attention.mla || !spec.attentions.empty() || spec.recurrence ||
                !spec.images->cross_layers.empty(),
            "images' own weights exclude moe, attention.mla, attentions, recurrence or images.cross_layers");
  reject_if(spec.images->low_rank > 0 && (spec.images->own_attention || spec.images->own_mlp),
            "images.low_rank is incompatible with images.own_attention or images.own_mlp");
}

void check(const HeadSpec& head, const ModelSpec& spec) {
  reject_if(spec.attention.mla && head.kind == HeadKind::kEagle3, "head.kind eagle3 with attention.mla");
  reject_if(spec.block.is_parallel, "head with block.is_parallel");
  reject_if(head.kind != HeadKind::kEagle3 && width_of(head) != spec.hidden_size,
            "head.target_hidden_size must be hidden_size, without head.target_layers");
  if (std::ranges::any_of(head.tokens, [&](int token) { return token >= spec.vocab_size; })) {
    throw invalid_argument("head.tokens must be tokens of the vocabulary");
  }
}

void check(const BlockSpec& block, const ModelSpec& spec) {  // #lizard forgives: a list of contradictions
  const bool is_bare = !block.has_output_norms && !spec.hyper_connections;
  reject_if(!block.has_input_norms && (is_bare || block.is_parallel || spec.head),
            "a block without has_input_norms needs has_output_norms, without is_parallel and head");
  reject_if(spec.moe && spec.moe->is_alongside_mlp && (!block.has_output_norms || block.is_parallel),
            "moe.is_alongside_mlp needs a block with has_output_norms, without is_parallel");
  reject_if(block.skips_first_norm && (!block.has_input_norms || block.norms_stream || block.shares_norm || spec.head),
            "skips_first_norm needs has_input_norms, without norms_stream, shares_norm and head");
  reject_if(block.norms_stream && (!block.has_input_norms || block.is_parallel || spec.head),
            "a block with norms_stream needs has_input_norms, without is_parallel and head");
}

void check(const RecurrenceSpec& kind_spec) {
  reject_if(kind_spec.num_heads % kind_spec.num_key_heads != 0,
            "recurrence.num_heads must be a multiple of recurrence.num_key_heads");
  reject_if(kind_spec.norm == RecurrenceNorm::kGroups && kind_spec.num_heads % kind_spec.norm_groups != 0,
            "recurrence.num_heads must be a multiple of recurrence.norm_groups");
  reject_if(!kind_spec.slopes.empty() && kind_spec.slopes.size() != static_cast<size_t>(kind_spec.num_heads),
            "recurrence.slopes must have a number for each head");
}

[[noreturn]] void reject(int layer, const std::string& problem) {
  throw invalid_argument("layer " + std::to_string(layer) + ": " + problem);
}

// Features that attention to latents has no operation for; support for one deletes its line.
void check_latent(const AttentionSpec& kind_spec, int layer) {
  const std::pair<bool, const char*> lacking[] = {
      {kind_spec.qk_norm != QkNorm::kNone, "qk_norm"},
      {kind_spec.norms_rotated, "norms_rotated"},
      {kind_spec.qkv_clip != 0, "qkv_clip"},
      {kind_spec.qkv_bias, "qkv_bias"},
      {kind_spec.softcap != 0, "softcap"},
      {kind_spec.value_scale != 1, "value_scale"},
      {!kind_spec.alibi_slopes.empty(), "alibi_slopes"},
      {kind_spec.logn_length != 0, "logn_length"},
      {kind_spec.has_output_gate, "has_output_gate"},
      {std::ranges::any_of(kind_spec.windows, [](int window) { return window > 0; }), "windows"},
  };
  for (const auto& [is_used, field] : lacking) {
    if (is_used) reject(layer, "attend: attention." + std::string(field) + " is incompatible with attention.mla");
  }
  if (!kind_spec.mla->indexer) return;
  const IndexerSpec& indexer = *kind_spec.mla->indexer;
  if (kind_spec.mla->q_rank == 0) reject(layer, "attention.mla.indexer needs attention.mla.q_rank");
  if (indexer.head_dim % 2 != 0 || indexer.head_dim < kind_spec.mla->rope_dim) {
    reject(layer, "attention.mla.indexer.head_dim must be even and at least rope_dim " +
                      std::to_string(kind_spec.mla->rope_dim) + ", got " + std::to_string(indexer.head_dim));
  }
  if (!indexer.layers.front()) reject(layer, "attention.mla.indexer.layers[0] must be true");
  if (indexer.top_k % indexer.pool != 0) reject(layer, "attention.mla.indexer.pool must divide top_k");
}

void check_block_indexer(const ModelSpec& spec, int kind, int layer) {
  const AttentionSpec& attention = attention_kind(spec, kind);
  const BlockIndexerSpec& indexer = *attention.block_indexer;
  const bool is_of_all = kind == 0 && spec.attentions.empty() && spec.ropes.size() == 1;
  if (!is_of_all || attention.mla || window_of(spec, layer) > 0 ||
      (indexer.is_by_best && indexer.num_heads != head_sizes(spec, kind).kv_heads) || !attention.alibi_slopes.empty() ||
      attention.bias_reach > 0 || indexer.budget % indexer.block != 0 || indexer.head_dim % 2 != 0 ||
      2 * spec.ropes[0].inv_freq.size() > static_cast<size_t>(indexer.head_dim)) {
    reject(layer, "attention.block_indexer does not fit the other fields");
  }
}

void check_distances(const ModelSpec& spec, const std::vector<int>& buckets, const HeadSizes& sizes, int layer) {
  if (!spec.encoder || buckets.size() % 2 == 0 || !std::ranges::is_sorted(buckets) || sizes.heads != sizes.kv_heads ||
      sizes.head_dim != sizes.value_dim) {
    reject(layer, "attention.distance_buckets does not fit the other fields");
  }
}

// A kind of attention, named by the first layer that has it.
void check_attention(const ModelSpec& spec, int layer) {
  const int kind = attention_of(spec, layer);
  const AttentionSpec& kind_spec = attention_kind(spec, kind);
  const HeadSizes sizes = head_sizes(spec, kind);
  if (sizes.heads % sizes.kv_heads != 0) {
    reject(layer, "num_heads must be a multiple of num_kv_heads " + std::to_string(sizes.kv_heads) + ", got " +
                      std::to_string(sizes.heads));
  }
  if (sizes.head_dim % 2 != 0) reject(layer, "head_dim must be even, got " + std::to_string(sizes.head_dim));
  if (const size_t slopes = kind_spec.alibi_slopes.size(); slopes != 0 && slopes != static_cast<size_t>(sizes.heads)) {
    reject(layer, "attention.alibi_slopes must have num_heads values");
  }
  if (!kind_spec.distance_buckets.empty()) check_distances(spec, kind_spec.distance_buckets, sizes, layer);
  if (kind_spec.mla && !spec.attentions.empty()) reject(layer, "attention.mla with attentions");
  if (kind_spec.mla) check_latent(kind_spec, layer);
  if (kind_spec.block_indexer) check_block_indexer(spec, kind, layer);
  if (spec.images && spec.images->whole_rows > 0 && !kind_spec.alibi_slopes.empty()) {
    reject(layer, "images.whole_rows is incompatible with attention.alibi_slopes");
  }
}

void check_rotation(const ModelSpec& spec, int layer) {
  const int number = spec.layer_ropes[static_cast<size_t>(layer)];
  reject_if(number < -1 || number >= static_cast<int>(spec.ropes.size()), "layer_ropes: no such rope");
  if (number < 0) return;
  const int kind = attention_of(spec, layer);
  const auto& mla = attention_kind(spec, kind).mla;
  const int rotated = mla ? mla->rope_dim : head_sizes(spec, kind).head_dim;
  if (2 * spec.ropes[static_cast<size_t>(number)].inv_freq.size() > static_cast<size_t>(rotated)) {
    reject(layer, "rope.inv_freq must have 1 to head_dim / 2 values");
  }
}

// A layer that attends to another one's keys and values reads them where they lie.
void check_shared_keys(const ModelSpec& spec, int layer) {
  const int source = keys_of(spec, layer);
  if (source < 0) return;
  const auto has_own_keys = [&](int of) { return has_attention(spec, of) && (of == layer || keys_of(spec, of) < 0); };
  const auto memory_of = [&](int of) { return std::pair(attention_of(spec, of), window_of(spec, of)); };
  if (source >= layer || !has_own_keys(source) || !has_own_keys(layer) || memory_of(source) != memory_of(layer)) {
    throw invalid_argument("layer_keys[" + std::to_string(layer) +
                           "] must be an earlier layer that attends to keys of its own and has the same memory, got " +
                           std::to_string(source));
  }
  reject_if(spec.attention.mla || attention_kind(spec, attention_of(spec, layer)).has_output_gate || spec.head ||
                cross_layer_count(spec) > 0,
            "layer_keys is incompatible with attention.mla, attention.has_output_gate, head or images.cross_layers");
}

void check_layers(const ModelSpec& spec) {
  const auto layers = static_cast<size_t>(spec.num_layers);
  reject_if(spec.layer_ropes.size() != layers, "layer_ropes must have a value for each layer");
  reject_if(!spec.mlp.sizes.empty() && spec.mlp.sizes.size() != layers, "mlp.sizes must have a value for each layer");
  const MoeSpec moe = spec.moe.value_or(MoeSpec{});
  for (const auto* activations : {&moe.activations, &moe.shared_activations}) {
    reject_if(!activations->empty() && activations->size() != layers,
              "moe.activations must have a value for each layer");
  }
  std::vector<bool> is_found(static_cast<size_t>(attention_count(spec)), false);
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const auto kind = static_cast<size_t>(attention_of(spec, layer));
    if (kind >= is_found.size()) {
      throw invalid_argument("layer_attentions[" + std::to_string(layer) + "]: no such kind of attention");
    }
    if (!is_found[kind]) check_attention(spec, layer);
    is_found[kind] = true;
    check_rotation(spec, layer);
    check_shared_keys(spec, layer);
    if (has_experts(spec, layer) && spec.moe->router.scales_input && spec.moe->experts_per_token != 1) {
      reject(layer, "experts: moe.router.scales_input is incompatible with several experts a token");
    }
  }
}

void check(const CompressedAttentionSpec& config, const ModelSpec& spec) {
  reject_if(config.layers.size() != static_cast<size_t>(spec.num_layers) || spec.ropes.size() != 2,
            "compressed_attention needs a kind for each layer, and two ropes");
  reject_if(spec.num_heads % config.output_groups != 0, "compressed_attention.output_groups must divide num_heads");
  const size_t rotated = 2 * std::max(spec.ropes[0].inv_freq.size(), spec.ropes[1].inv_freq.size());
  reject_if(spec.ropes[0].inv_freq.size() != spec.ropes[1].inv_freq.size() ||
                rotated > static_cast<size_t>(std::min(spec.head_dim, config.index_head_dim)),
            "compressed_attention must rotate as many numbers by both ropes, at most head_dim and index_head_dim");
  reject_if(!spec.hyper_connections || spec.images || spec.head || spec.encoder,
            "compressed_attention needs hyper_connections, without images, head and encoder");
  reject_if(std::ranges::any_of(spec.layer_ropes, [](int rope) { return rope < 0; }),
            "compressed_attention needs a rope in each layer");
}

void check_mixers(const ModelSpec& spec) {
  bool has_one = false;
  bool is_partial = false;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    has_one |= has_recurrence(spec, layer);
    is_partial |= !has_mixer(spec, layer);
    reject_if(has_compressed_attention(spec, layer) != spec.compressed_attention.has_value(),
              "compressed_attention must be in all layers, or in none");
    is_partial |= !spec.layer_mlps[static_cast<size_t>(layer)];
  }
  reject_if(has_one != spec.recurrence.has_value(),
            "recurrence must be there where layer_mixers has it, and only there");
  const bool has_scales =
      spec.block.has_layer_scale || (spec.recurrence_block && spec.recurrence_block->has_layer_scale);
  reject_if(
      is_partial && (spec.block.is_parallel || spec.head || spec.layer_input || has_scales),
      "layers without a mixer or an MLP are incompatible with block.is_parallel, block.has_layer_scale, layer_input or "
      "head");
  reject_if(spec.recurrence_block && (spec.recurrence_block->is_parallel || !has_one),
            "recurrence_block needs a recurrence, and cannot be parallel");
  if (has_one) check(*spec.recurrence);
  if (spec.compressed_attention) check(*spec.compressed_attention, spec);
}

void check(const EncoderSpec&, const ModelSpec& spec) {
  const AttentionSpec& kind_spec = spec.attention;
  if (!spec.attentions.empty() || kind_spec.mla || spec.recurrence || spec.images || spec.head || spec.layer_input ||
      std::ranges::any_of(spec.layer_keys, [](int layer) { return layer >= 0; })) {
    throw invalid_argument(
        "encoder is incompatible with attentions, attention.mla, layer_keys, recurrence, images, head or layer_input");
  }
}

void check(const SharedBlocksSpec&, const ModelSpec& spec) {
  const BlockSpec& block = spec.block;
  reject_if(spec.recurrence_block || spec.moe || spec.attention.mla || !block.has_input_norms || block.is_parallel ||
                block.norms_stream || block.skips_first_norm || block.has_output_norms || block.has_layer_scale,
            "shared_blocks needs the standard block, without recurrence_block, moe and attention.mla");
  reject_if(spec.head || spec.images || spec.streams || spec.hyper_connections || spec.layer_input,
            "shared_blocks is incompatible with head, images, streams, hyper_connections or layer_input");
}

void check_streams(const ModelSpec& spec) {
  const bool is_standard = spec.block.has_input_norms && spec.block.has_output_norms && !spec.block.is_parallel;
  reject_if(spec.streams->active >= spec.streams->count, "streams.active must be below streams.count");
  reject_if(!is_standard || spec.head || spec.recurrence || spec.images || !spec.layer_input,
            "streams needs layer_input and norms of inputs and outputs, without head or images");
}

void check_hyper_connections(const ModelSpec& spec) {
  const BlockSpec& block = spec.block;
  reject_if(spec.hyper_connections->ends_by_mean && spec.hyper_connections->rank > 0,
            "hyper_connections.ends_by_mean needs rank 0");
  const bool adds_images = spec.images && (spec.images->deepstack_layers > 0 || !spec.images->cross_layers.empty());
  reject_if(block.has_input_norms != (spec.hyper_connections->rank == 0) || block.has_output_norms ||
                block.is_parallel || block.has_layer_scale || spec.recurrence_block ||
                (spec.moe && spec.moe->is_alongside_mlp) || spec.head || adds_images || spec.encoder ||
                spec.layer_input || spec.streams,
            "hyper_connections does not fit the block, or head, images in layers, encoder, layer_input or streams");
}

void check(const NgramsSpec& ngrams, const ModelSpec& spec) {
  reject_if(!spec.hyper_connections || !spec.recurrence, "ngrams needs hyper_connections and recurrence");
  const auto heads = static_cast<size_t>(ngrams.size - 1) * static_cast<size_t>(ngrams.heads);
  const size_t count = ngrams.layers.size();
  reject_if(count == 0 || !std::ranges::is_sorted(ngrams.layers) || ngrams.layers.back() >= spec.num_layers,
            "ngrams.layers must be layers, ascending");
  reject_if(static_cast<size_t>(ngrams.width) % heads != 0, "ngrams.width must be a multiple of the heads");
  reject_if(ngrams.conv_kernel > kMaxConvKernel || conv_reach(ngrams) > kMaxConvKernel,
            "ngrams.conv_kernel reaches too many tokens");
  reject_if(ngrams.multipliers.size() != count * static_cast<size_t>(ngrams.size) ||
                ngrams.head_sizes.size() != count * heads || ngrams.table_rows.size() != count,
            "ngrams.multipliers, head_sizes and table_rows must have values for each layer");
  for (size_t layer = 0; layer < count; ++layer) {
    const auto first = ngrams.head_sizes.begin() + static_cast<ptrdiff_t>(layer * heads);
    reject_if(std::accumulate(first, first + static_cast<ptrdiff_t>(heads), int64_t{0}) > ngrams.table_rows[layer],
              "ngrams.table_rows must be at least those of the heads");
  }
}

void check(const RopeSpec& rope) {
  reject_if(rope.inv_freq.empty(), "rope.inv_freq must have 1 to head_dim / 2 values");
  reject_if(!rope.axes.empty() && (rope.axes.size() != rope.inv_freq.size() || rope.stretch),
            "rope.axes must have as many values as rope.inv_freq, without a stretch");
  reject_if(
      rope.stretch && rope.stretch->kind == StretchKind::kLong && rope.stretch->inv_freq.size() != rope.inv_freq.size(),
      "rope.stretch.inv_freq must have as many values as rope.inv_freq");
}

void check(const ModelSpec& spec) {
  check_layers(spec);
  if (spec.encoder) check(*spec.encoder, spec);
  if (spec.head) check(*spec.head, spec);
  if (spec.moe) check(*spec.moe);
  if (spec.images) check_images(spec);
  check_own_weights(spec);
  check_mixers(spec);
  check(spec.block, spec);
  if (spec.recurrence_block) check(*spec.recurrence_block, spec);
  reject_if(spec.mlp.is_xielu && spec.mlp.is_gated, "mlp.is_xielu with mlp.is_gated");
  reject_if(spec.layer_input && (spec.head || spec.has_embedding_norm || cross_layer_count(spec) > 0),
            "layer_input is incompatible with head, has_embedding_norm or images.cross_layers");
  if (spec.streams) check_streams(spec);
  if (spec.shared_blocks) check(*spec.shared_blocks, spec);
  if (spec.hyper_connections) check_hyper_connections(spec);
  if (spec.ngrams) check(*spec.ngrams, spec);
  for (const RopeSpec& rope : spec.ropes) check(rope);
}

ModelSpec read(const Json& json) {
  if (json.at("format").as_int() != kFormat) {
    throw invalid_argument("format is not " + std::to_string(kFormat) + "; convert the model again");
  }
  ModelSpec spec;
  visit_fields(spec, SpecReader(json, "", spec.num_layers));
  if (spec.layer_ropes.empty()) {
    spec.layer_ropes.assign(static_cast<size_t>(spec.num_layers), spec.ropes.empty() ? -1 : 0);
  }
  check(spec);
  return spec;
}

}  // namespace

ModelSpec read_model_spec(const std::string& path) {
  try {
    return read(Json::parse_file(path));
  } catch (const Error& error) {
    throw Error(error.code(), path + ": " + error.what());
  }
}

}  // namespace turbomind
