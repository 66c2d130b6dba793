#include "kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

// Spans of at most this many rows (decoding) spread a row's partitions over threads; longer ones have rows enough.
constexpr int kSplitRows = 4;

int partition_count(int tokens) {
  return (tokens + kPartitionTokens - 1) / kPartitionTokens;
}

int row_width(const AttentionParams& params) {
  return (params.num_heads + 2 * params.layout.num_kv_heads) * params.layout.head_dim;
}

// Rows that one task computes; the same keys stay in cache meanwhile.
constexpr int kTaskRows = 16;

struct Run {
  const AttentionSpan* span;
  int first_row;  // within the span
  int row_count;
};

std::vector<Run> runs_of(const AttentionParams& params) {
  std::vector<Run> runs;
  for (int s = 0; s < params.span_count; ++s) {
    const AttentionSpan& span = params.spans[s];
    for (int row = 0; row < span.count; row += kTaskRows) {
      runs.push_back({&span, row, std::min(kTaskRows, span.count - row)});
    }
  }
  return runs;
}

// One key/value head of a run, over all partitions of each row; or of a single row, over one partition.
struct Task {
  Run run;
  int kv_head;
  int partition;     // -1: all of them, merged in place
  size_t workspace;  // where a single partition's partial result starts
};

// out, maximum and sum of one partition lie together in the workspace: [group, head_dim], [group], [group].
size_t partial_floats(const AttentionParams& params) {
  const int group = params.num_heads / params.layout.num_kv_heads;
  return static_cast<size_t>(group) * (params.layout.head_dim + 2);
}

// Merges a partition's partial result into the running one. The first partition is copied.
void merge_partial(const float* partial, int group, int head_dim, bool is_first, float* out, float* maximum,
                   float* sum) {
  const float* partial_maximum = partial + static_cast<size_t>(group) * head_dim;
  const float* partial_sum = partial_maximum + group;
  for (int h = 0; h < group; ++h) {
    const float top = is_first ? partial_maximum[h] : std::max(maximum[h], partial_maximum[h]);
    const float keep = is_first ? 0.0f : std::exp(maximum[h] - top);
    const float gain = std::exp(partial_maximum[h] - top);
    float* o = out + h * head_dim;
    const float* p = partial + h * head_dim;
    for (int d = 0; d < head_dim; ++d) o[d] = is_first ? p[d] * gain : o[d] * keep + p[d] * gain;
    sum[h] = is_first ? partial_sum[h] * gain : sum[h] * keep + partial_sum[h] * gain;
    maximum[h] = top;
  }
}

void normalise(int group, int head_dim, const float* sum, float* out) {
  for (int h = 0; h < group; ++h) {
    const float factor = 1.0f / sum[h];
    for (int d = 0; d < head_dim; ++d) out[h * head_dim + d] *= factor;
  }
}

struct Attention {
  const AttentionParams& params;
  const float* qkv;
  float* workspace;
  float* out;
  int group;
  int head_dim;

  float* out_row(const AttentionSpan& span, int row, int kv_head) const {
    return out + (static_cast<size_t>(span.first_row + row) * params.num_heads + kv_head * group) * head_dim;
  }

  void attend_partition(const AttentionSpan& span, int row, int kv_head, int partition, float* partial) const {
    const float* q = qkv + static_cast<size_t>(span.first_row + row) * row_width(params) +
                     static_cast<size_t>(kv_head) * group * head_dim;
    const int tokens = span.first_position + row + 1;
    const int begin = partition * kPartitionTokens;
    float* maximum = partial + static_cast<size_t>(group) * head_dim;
    kernels().attend(params, kv_head, group, q, span.blocks, begin, std::min(tokens, begin + kPartitionTokens), partial,
                     maximum, maximum + group);
  }

  void attend_row(const AttentionSpan& span, int row, int kv_head, std::vector<float>& scratch) const {
    scratch.resize(partial_floats(params) + 2 * static_cast<size_t>(group));
    float* maximum = scratch.data() + partial_floats(params);
    float* sum = maximum + group;
    float* target = out_row(span, row, kv_head);
    const int partitions = partition_count(span.first_position + row + 1);
    for (int partition = 0; partition < partitions; ++partition) {
      attend_partition(span, row, kv_head, partition, scratch.data());
      merge_partial(scratch.data(), group, head_dim, partition == 0, target, maximum, sum);
    }
    normalise(group, head_dim, sum, target);
  }

  void merge_row(const AttentionSpan& span, int row, int kv_head, const float* partials,
                 std::vector<float>& scratch) const {
    scratch.resize(2 * static_cast<size_t>(group));
    float* target = out_row(span, row, kv_head);
    const int partitions = partition_count(span.first_position + row + 1);
    for (int partition = 0; partition < partitions; ++partition) {
      merge_partial(partials + partition * partial_floats(params), group, head_dim, partition == 0, target,
                    scratch.data(), scratch.data() + group);
    }
    normalise(group, head_dim, scratch.data() + group, target);
  }
};

bool is_split(const AttentionSpan& span) {
  return span.count <= kSplitRows && partition_count(span.first_position + span.count) > 1;
}

std::vector<Task> plan(const AttentionParams& params) {
  std::vector<Task> tasks;
  size_t workspace = 0;
  for (const Run& run : runs_of(params)) {
    for (int head = 0; head < params.layout.num_kv_heads; ++head) {
      if (!is_split(*run.span)) {
        tasks.push_back({run, head, -1, 0});
        continue;
      }
      for (int row = run.first_row; row < run.first_row + run.row_count; ++row) {
        for (int p = 0; p < partition_count(run.span->first_position + row + 1); ++p) {
          tasks.push_back({{run.span, row, 1}, head, p, workspace});
          workspace += partial_floats(params);
        }
      }
    }
  }
  return tasks;
}

template <class T>
void write_plain(const CacheLayout& layout, int slot, const float* k, const float* v, std::byte* keys,
                 std::byte* values) {
  for (int d = 0; d < layout.head_dim; ++d) {
    reinterpret_cast<T*>(keys)[static_cast<size_t>(d) * layout.block_len + slot] = from_float<T>(k[d]);
    reinterpret_cast<T*>(values)[static_cast<size_t>(slot) * layout.head_dim + d] = from_float<T>(v[d]);
  }
}

// Rounds a head's values so that their range, and 0, is met; the codes go to `codes`, scale and zero point to the head.
void round_head(const CacheLayout& layout, int slot, const float* x, uint8_t* codes, std::byte* head) {
  float low = 0;
  float high = 0;
  for (int d = 0; d < layout.head_dim; ++d) {
    low = std::min(low, x[d]);
    high = std::max(high, x[d]);
  }
  const float largest_code = layout.type == CacheType::kInt8 ? 255.0f : 15.0f;
  const half scale = to_half((high - low) / largest_code);
  const float step = to_float(scale);
  const float inverse = step > 0 ? 1.0f / step : 0.0f;
  const float zero = std::clamp(std::nearbyint(-low * inverse), 0.0f, largest_code);
  for (int d = 0; d < layout.head_dim; ++d) {
    codes[d] = static_cast<uint8_t>(std::clamp(std::nearbyint(x[d] * inverse + zero), 0.0f, largest_code));
  }
  auto* scales = reinterpret_cast<half*>(head + layout.code_bytes());
  scales[slot] = scale;
  reinterpret_cast<uint8_t*>(scales + layout.block_len)[slot] = static_cast<uint8_t>(zero);
}

void write_rounded(const CacheLayout& layout, int slot, const float* k, const float* v, std::byte* keys,
                   std::byte* values) {
  std::vector<uint8_t> codes(static_cast<size_t>(layout.head_dim));
  auto* key_codes = reinterpret_cast<uint8_t*>(keys) + slot;
  auto* value_codes =
      reinterpret_cast<uint8_t*>(values) + static_cast<size_t>(slot) * layout.head_dim * bits_of(layout.type) / 8;
  const auto half_dim = static_cast<size_t>(layout.head_dim) / 2;
  round_head(layout, slot, k, codes.data(), keys);
  if (layout.type == CacheType::kInt8) {
    for (size_t d = 0; d < codes.size(); ++d) key_codes[d * layout.block_len] = codes[d];
  } else {
    for (size_t d = 0; d < half_dim; ++d)
      key_codes[d * layout.block_len] = static_cast<uint8_t>(codes[2 * d] | codes[2 * d + 1] << 4);
  }
  round_head(layout, slot, v, codes.data(), values);
  if (layout.type == CacheType::kInt8) {
    std::copy(codes.begin(), codes.end(), value_codes);
  } else {
    for (size_t d = 0; d < half_dim; ++d) value_codes[d] = static_cast<uint8_t>(codes[d] | codes[d + half_dim] << 4);
  }
}

void write_cache_row(const AttentionParams& params, const AttentionSpan& span, int row, const float* k,
                     const float* v) {
  const CacheLayout& layout = params.layout;
  const int position = span.first_position + row;
  const int slot = position % layout.block_len;
  std::byte* block = params.pool + span.blocks[position / layout.block_len] * layout.block_bytes();
  for (int head = 0; head < layout.num_kv_heads; ++head, k += layout.head_dim, v += layout.head_dim) {
    std::byte* keys = block + layout.key_offset(params.layer, head);
    std::byte* values = block + layout.value_offset(params.layer, head);
    switch (layout.type) {
      case CacheType::kFloat32:
        write_plain<float>(layout, slot, k, v, keys, values);
        break;
      case CacheType::kBFloat16:
        write_plain<bf16>(layout, slot, k, v, keys, values);
        break;
      case CacheType::kInt8:
      case CacheType::kInt4:
        write_rounded(layout, slot, k, v, keys, values);
    }
  }
}

}  // namespace

size_t attention_workspace_floats(const AttentionParams& params) {
  size_t partials = 0;
  for (int s = 0; s < params.span_count; ++s) {
    const AttentionSpan& span = params.spans[s];
    if (!is_split(span)) continue;
    for (int row = 0; row < span.count; ++row) {
      partials += static_cast<size_t>(partition_count(span.first_position + row + 1)) * params.layout.num_kv_heads;
    }
  }
  return partials * partial_floats(params);
}

void write_cache(ThreadPool& pool, const AttentionParams& params, const float* qkv) {
  const auto head_dim = static_cast<size_t>(params.layout.head_dim);
  const std::vector<Run> runs = runs_of(params);
  pool.parallel_for(static_cast<int>(runs.size()), [&](int index) {
    const Run& run = runs[index];
    for (int r = run.first_row; r < run.first_row + run.row_count; ++r) {
      const auto row = static_cast<size_t>(run.span->first_row + r);
      const float* k = qkv + row * row_width(params) + params.num_heads * head_dim;
      write_cache_row(params, *run.span, r, k, k + params.layout.num_kv_heads * head_dim);
    }
  });
}

void paged_attention(ThreadPool& pool, const AttentionParams& params, const float* qkv, float* workspace, float* out) {
  const Attention attention{
      params, qkv, workspace, out, params.num_heads / params.layout.num_kv_heads, params.layout.head_dim};
  const std::vector<Task> tasks = plan(params);
  pool.parallel_for(static_cast<int>(tasks.size()), [&](int index) {
    const auto& [run, kv_head, partition, offset] = tasks[index];
    if (partition >= 0) {
      attention.attend_partition(*run.span, run.first_row, kv_head, partition, workspace + offset);
      return;
    }
    std::vector<float> scratch;
    for (int row = 0; row < run.row_count; ++row)
      attention.attend_row(*run.span, run.first_row + row, kv_head, scratch);
  });
  std::vector<float> scratch;
  for (const auto& [run, kv_head, partition, offset] : tasks) {
    if (partition == 0) attention.merge_row(*run.span, run.first_row, kv_head, workspace + offset, scratch);
  }
}

}  // namespace turbomind
