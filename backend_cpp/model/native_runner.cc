#include "model/native_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "model/decoder_limits.h"

namespace turbomind {

namespace {

AlignedBuffer float_buffer(int rows, int width) {
  return AlignedBuffer(static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float));
}

size_t read_number(const char* path) {
  std::ifstream file(path);
  size_t number = 0;
  return file >> number ? number : std::numeric_limits<size_t>::max();
}

ModelSpec checked(ModelSpec spec) {
  refuse_what_the_decoder_lacks(spec);
  return spec;
}

template <class T>
void widen_row(const T* source, int size, float* destination) {
  for (int i = 0; i < size; ++i) destination[i] = to_float(source[i]);
}

}  // namespace

size_t available_memory() {
  size_t available = std::numeric_limits<size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  for (size_t kilobytes; meminfo >> key >> kilobytes; meminfo.ignore(64, '\n')) {
    if (key == "MemAvailable:") available = kilobytes << 10;
  }
  const size_t limit = read_number("/sys/fs/cgroup/memory.max");
  if (limit != std::numeric_limits<size_t>::max()) {
    const size_t used = read_number("/sys/fs/cgroup/memory.current");
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

NativeRunner::NativeRunner(ModelSpec spec, const Checkpoint& checkpoint, const WeightOptions& options,
                           CacheType cache_type, int max_rows, int threads)
    : spec_(checked(std::move(spec))),
      pool_(threads > 0 ? threads : available_cpu_count()),
      weights_(Weights::load(spec_, checkpoint, options, pool_)),
      cache_type_(cache_type),
      max_rows_(max_rows),
      hidden_(float_buffer(max_rows, spec_.hidden_size)),
      normed_(float_buffer(max_rows, spec_.hidden_size)),
      qkv_(float_buffer(max_rows, (spec_.num_heads + 2 * spec_.num_kv_heads) * spec_.head_dim)),
      attended_(float_buffer(max_rows, spec_.num_heads * spec_.head_dim)),
      gate_up_(float_buffer(max_rows, 2 * spec_.intermediate_size)),
      activated_(float_buffer(max_rows, spec_.intermediate_size)),
      rope_cos_(float_buffer(max_rows, spec_.head_dim / 2)),
      rope_sin_(float_buffer(max_rows, spec_.head_dim / 2)),
      logit_rows_(float_buffer(max_rows, spec_.hidden_size)),
      logits_(float_buffer(max_rows, spec_.vocab_size)) {}

CacheLayout NativeRunner::layout(int block_len) const {
  return {cache_type_, spec_.num_layers, spec_.num_kv_heads, spec_.head_dim, block_len};
}

size_t NativeRunner::free_cache_memory() const {
  return available_memory();
}

void NativeRunner::allocate_cache(int block_count, int block_len) {
  layout_ = layout(block_len);
  cache_ = AlignedBuffer(layout_.block_bytes() * static_cast<size_t>(block_count));
}

StepOutput NativeRunner::forward(const StepInput& input) {
  const int rows = static_cast<int>(input.tokens.size());
  if (rows > max_rows_) throw internal_error("a step of " + std::to_string(rows) + " rows exceeds the runner's limit");
  embed(input);
  fill_rope_tables(input);
  spans_.clear();
  for (const StepSpan& span : input.spans) {
    spans_.push_back({span.first_row, span.count, span.first_position, span.blocks->data()});
  }
  AttentionParams attention{layout_,       cache_.as<std::byte>(),         0, spec_.num_heads, spec_.attention.scale,
                            spans_.data(), static_cast<int>(spans_.size())};
  const size_t workspace_bytes = attention_workspace_floats(attention) * sizeof(float);
  if (workspace_.size() < workspace_bytes) workspace_ = AlignedBuffer(workspace_bytes);
  for (int layer = 0; layer < spec_.num_layers; ++layer) run_layer(layer, rows, attention);
  return compute_logits(input);
}

void NativeRunner::embed(const StepInput& input) {
  const int size = spec_.hidden_size;
  const LinearWeight& table = weights_.embedding.view;
  for (size_t row = 0; row < input.tokens.size(); ++row) {
    const size_t offset = static_cast<size_t>(input.tokens[row]) * size;
    float* out = hidden_.as<float>() + row * size;
    if (table.format == WeightFormat::kFloat32) {
      std::memcpy(out, static_cast<const float*>(table.data) + offset, size * sizeof(float));
    } else {
      widen_row(static_cast<const bf16*>(table.data) + offset, size, out);
    }
  }
}

void NativeRunner::fill_rope_tables(const StepInput& input) {
  const int half = spec_.head_dim / 2;
  for (const StepSpan& span : input.spans) {
    for (int r = 0; r < span.count; ++r) {
      const auto position = static_cast<float>(span.first_position + r);
      float* cosine = rope_cos_.as<float>() + static_cast<size_t>(span.first_row + r) * half;
      float* sine = rope_sin_.as<float>() + static_cast<size_t>(span.first_row + r) * half;
      for (int i = 0; i < half; ++i) {
        const float angle = position * spec_.ropes[0].inv_freq[i];
        cosine[i] = std::cos(angle) * spec_.ropes[0].attention_scaling;
        sine[i] = std::sin(angle) * spec_.ropes[0].attention_scaling;
      }
    }
  }
}

void NativeRunner::run_layer(int index, int rows, AttentionParams& attention) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  attention.layer = index;
  auto* hidden = hidden_.as<float>();
  auto* normed = normed_.as<float>();
  auto* qkv = qkv_.as<float>();

  rms_norm(pool_, hidden, layer.attention_norm.as<float>(), spec_.norm.eps, rows, spec_.hidden_size, normed);
  linear(pool_, scratch_, layer.qkv.view, normed, rows, qkv, false);
  rope_and_cache_write(pool_, attention, rope_cos_.as<float>(), rope_sin_.as<float>(), qkv);
  paged_attention(pool_, attention, qkv, workspace_.as<float>(), attended_.as<float>());
  linear(pool_, scratch_, layer.o.view, attended_.as<float>(), rows, hidden, true);

  rms_norm(pool_, hidden, layer.mlp_norm.as<float>(), spec_.norm.eps, rows, spec_.hidden_size, normed);
  linear(pool_, scratch_, layer.gate_up.view, normed, rows, gate_up_.as<float>(), false);
  silu_and_mul(pool_, gate_up_.as<float>(), rows, spec_.intermediate_size, activated_.as<float>());
  linear(pool_, scratch_, layer.down.view, activated_.as<float>(), rows, hidden, true);
}

StepOutput NativeRunner::compute_logits(const StepInput& input) {
  const auto size = static_cast<size_t>(spec_.hidden_size);
  int count = 0;
  for (const StepSpan& span : input.spans) {
    const int wanted = span.wanted == SpanRows::kNone ? 0 : span.wanted == SpanRows::kLast ? 1 : span.count;
    const size_t first = static_cast<size_t>(span.first_row) + span.count - wanted;
    std::memcpy(logit_rows_.as<float>() + count * size, hidden_.as<float>() + first * size,
                wanted * size * sizeof(float));
    count += wanted;
  }
  rms_norm(pool_, logit_rows_.as<float>(), weights_.final_norm.as<float>(), spec_.norm.eps, count, spec_.hidden_size,
           logit_rows_.as<float>());
  linear(pool_, scratch_, weights_.output_layer(), logit_rows_.as<float>(), count, logits_.as<float>(), false);
  return {logits_.as<float>(), logit_rows_.as<float>()};
}

}  // namespace turbomind
