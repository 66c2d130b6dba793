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
      max_rows_(max_rows),
      adds_directly_(!spec_.block.has_output_norms && spec_.block.residual_scale == 1),
      attention_(spec_, cache_type, max_rows),
      mlp_(spec_, max_rows),
      expert_mlp_(spec_),
      hidden_(float_buffer(max_rows, spec_.hidden_size)),
      normed_(float_buffer(max_rows, spec_.hidden_size)),
      mlp_input_(float_buffer(max_rows, spec_.hidden_size)),
      branch_(float_buffer(max_rows, spec_.hidden_size)),
      logit_rows_(float_buffer(max_rows, spec_.hidden_size)),
      logits_(float_buffer(max_rows, spec_.vocab_size)) {}

size_t NativeRunner::free_cache_memory() const {
  return available_memory();
}

int NativeRunner::window() const {
  const std::vector<int>& windows = spec_.attention.windows;
  const auto [narrowest, widest] = std::minmax_element(windows.begin(), windows.end());
  return *narrowest == 0 ? 0 : *widest;
}

StepOutput NativeRunner::forward(const StepInput& input) {
  const int rows = static_cast<int>(input.tokens.size());
  if (rows > max_rows_) throw internal_error("a step of " + std::to_string(rows) + " rows exceeds the runner's limit");
  const StepContext step{pool_, scratch_, rows};
  embed(input);
  attention_.begin_step(input);
  for (int layer = 0; layer < spec_.num_layers; ++layer) run_layer(step, layer);
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
    } else if (table.format == WeightFormat::kFloat16) {
      widen_row(static_cast<const half*>(table.data) + offset, size, out);
    } else {
      widen_row(static_cast<const bf16*>(table.data) + offset, size, out);
    }
    if (spec_.embedding_scale != 1) {
      for (int i = 0; i < size; ++i) out[i] *= spec_.embedding_scale;
    }
  }
}

void NativeRunner::run_layer(const StepContext& step, int index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  auto* hidden = hidden_.as<float>();
  auto* normed = normed_.as<float>();
  auto* target = adds_directly_ ? hidden : branch_.as<float>();
  const float* mlp_input = normed;

  norm(pool_, layer.attention_norm.view, hidden, step.rows, spec_.hidden_size, normed);
  if (spec_.block.is_parallel && !spec_.block.shares_norm) {
    norm(pool_, layer.mlp_norm.view, hidden, step.rows, spec_.hidden_size, mlp_input_.as<float>());
    mlp_input = mlp_input_.as<float>();
  }
  attention_.run(step, index, layer.attention, normed, target, adds_directly_);
  add_branch(step, layer.attention_output_norm);
  if (!spec_.block.is_parallel) norm(pool_, layer.mlp_norm.view, hidden, step.rows, spec_.hidden_size, normed);
  if (layer.experts) {
    expert_mlp_.run(step, *layer.experts, mlp_input, target, adds_directly_);
  } else {
    mlp_.run(step, layer.mlp, mlp_input, target, adds_directly_);
  }
  add_branch(step, layer.mlp_output_norm);
}

void NativeRunner::add_branch(const StepContext& step, const NormStorage& output_norm) {
  if (adds_directly_) return;
  auto* branch = branch_.as<float>();
  if (spec_.block.has_output_norms) norm(pool_, output_norm.view, branch, step.rows, spec_.hidden_size, branch);
  add_scaled(pool_, spec_.block.residual_scale, branch, step.rows, spec_.hidden_size, hidden_.as<float>());
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
  norm(pool_, weights_.final_norm.view, logit_rows_.as<float>(), count, spec_.hidden_size, logit_rows_.as<float>());
  linear(pool_, scratch_, weights_.output_layer(), logit_rows_.as<float>(), count, logits_.as<float>(), false);
  if (spec_.output.scale != 1 || spec_.output.softcap != 0) {
    scale_and_cap(pool_, spec_.output.scale, spec_.output.softcap, count, spec_.vocab_size, logits_.as<float>());
  }
  return {logits_.as<float>(), logit_rows_.as<float>()};
}

}  // namespace turbomind
