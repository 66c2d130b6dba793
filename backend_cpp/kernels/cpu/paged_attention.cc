#include "kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/running_softmax.h"

namespace turbomind {

namespace {

// Queries that one task computes at a time while the same keys stay in the first-level cache.
constexpr int kTaskQueries = 48;
constexpr int kTaskRows = 16;
// Spans of at most this many rows (decoding) spread a row's partitions over threads; longer ones have rows enough.
constexpr int kSplitRows = 4;

int first_seen(const AttentionParams& params, int position) {
  return params.window > 0 ? std::max(0, position + 1 - params.window) : 0;
}

// One past the last key that a row of a span sees.
int kv_len_of(const AttentionParams& params, const AttentionSpan& span, int row) {
  return params.kv_lens != nullptr ? params.kv_lens[span.first_token + row] : span.first_position + row + 1;
}

int kv_len_of(const AttentionParams& params, const Run& run, int row) {
  return kv_len_of(params, *run.span, run.first_token + row);
}

int group_size(const AttentionParams& params) {
  return params.num_heads / params.layout.num_kv_heads;
}

// One key/value head of a run, over all partitions it sees; or of a single row, over one partition.
struct Task {
  Run run;
  int kv_head;
  int partition;     // -1: all of them, merged in place
  size_t workspace;  // where a single partition's partial result starts
};

int first_partition(const AttentionParams& params, int position) {
  return first_seen(params, position) / kPartitionTokens;
}

int last_partition(int kv_len) {
  return (kv_len - 1) / kPartitionTokens;
}

bool is_split(const AttentionParams& params, const AttentionSpan& span) {
  const int kv_len = kv_len_of(params, span, span.count - 1);
  return span.count <= kSplitRows && first_partition(params, span.first_position) < last_partition(kv_len);
}

// out, maximum and sum of one partition are adjacent in the workspace: [group, value_dim], [group], [group].
size_t partial_floats(const AttentionParams& params) {
  return static_cast<size_t>(group_size(params)) * (params.layout.value_dim + 2);
}

std::vector<Task> plan(const AttentionParams& params) {
  std::vector<Task> tasks;
  size_t workspace = 0;
  const int rows = std::clamp(kTaskQueries / group_size(params), 1, kTaskRows);
  for (const Run& run : runs_of(params, rows)) {
    for (int head = 0; head < params.layout.num_kv_heads; ++head) {
      if (!is_split(params, *run.span)) {
        tasks.push_back({run, head, -1, 0});
        continue;
      }
      for (int row = 0; row < run.row_count; ++row) {
        const int position = run.position(row);
        for (int p = first_partition(params, position); p <= last_partition(kv_len_of(params, run, row)); ++p) {
          tasks.push_back({{run.span, run.first_token + row, 1}, head, p, workspace});
          workspace += partial_floats(params);
        }
      }
    }
  }
  return tasks;
}

class Attention {
 public:
  Attention(const AttentionParams& params, const HeadsView& q, float* workspace, float* out)
      : params_(params),
        q_(q),
        workspace_(workspace),
        out_(out),
        group_(group_size(params)),
        value_dim_(params.layout.value_dim) {}

  void run(const Task& task) const {
    if (task.partition < 0) {
      attention_of_run(task.run, task.kv_head);
      return;
    }
    Queries queries(*this, task.run, task.kv_head);
    float* partial = workspace_ + task.workspace;
    float* maximum = partial + static_cast<size_t>(group_) * value_dim_;
    queries.compute_attention(task.partition, partial, maximum, maximum + group_);
  }

  // Merges the partial results of a row whose first one starts at `workspace`.
  void merge(const Task& first) const {
    const int position = first.run.position(0);
    const float* partial = workspace_ + first.workspace;
    RunningSoftmax running(out_row(first.run, 0, first.kv_head), group_);
    std::fill_n(running.out, static_cast<size_t>(group_) * value_dim_, 0.0f);
    for (int p = first_partition(params_, position); p <= last_partition(kv_len_of(params_, first.run, 0)); ++p) {
      const float* maximum = partial + static_cast<size_t>(group_) * value_dim_;
      for (int n = 0; n < group_; ++n) {
        running.merge(n, value_dim_, partial + static_cast<size_t>(n) * value_dim_, maximum[n], maximum[group_ + n]);
      }
      partial += partial_floats(params_);
    }
    for (int n = 0; n < group_; ++n) running.normalise(n, value_dim_, sink(first.kv_head * group_ + n));
  }

 private:
  // A run's queries of one key/value head, [row, head of the group], as a kernel wants them.
  class Queries {
   public:
    Queries(const Attention& attention, const Run& run, int kv_head)
        : attention_(attention), run_(run), kv_head_(kv_head), count_(run.row_count * attention.group_) {
      for (int row = 0; row < run.row_count; ++row) {
        for (int n = 0; n < attention.group_; ++n) {
          begins_.push_back(first_seen(attention.params_, run.position(row)));
          ends_.push_back(kv_len_of(attention.params_, run, row));
          positions_.push_back(run.position(row));
          heads_.push_back(kv_head * attention.group_ + n);
        }
      }
      scratch_.resize(static_cast<size_t>(count_) * (attention.params_.layout.key_dim + 2));
    }

    void compute_attention(int partition, float* out, float* maximum, float* sum) {
      const AttentionParams& params = attention_.params_;
      const int key_dim = params.layout.key_dim;
      float* factors = scratch_.data();
      for (int row = 0; row < run_.row_count; ++row) {
        const auto index = static_cast<size_t>(run_.span->first_token + run_.first_token + row);
        for (int n = 0; n < attention_.group_; ++n, factors += key_dim) {
          std::copy_n(attention_.q_.head(index, kv_head_ * attention_.group_ + n), key_dim, factors);
        }
      }
      const int begin = std::max(begins_.front(), partition * kPartitionTokens);
      const int end = std::min(ends_.back(), (partition + 1) * kPartitionTokens);
      const AttentionQueries queries{count_,        begins_.data(),  ends_.data(), positions_.data(),
                                     heads_.data(), scratch_.data(), factors,      factors + count_,
                                     out,           maximum,         sum};
      kernels().compute_attention(params, kv_head_, run_.span->blocks, begin, end, queries);
    }

   private:
    const Attention& attention_;
    const Run& run_;
    int kv_head_;
    int count_;
    std::vector<int32_t> begins_;
    std::vector<int32_t> ends_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> heads_;
    std::vector<float> scratch_;  // factors, then two numbers a query
  };

  void attention_of_run(const Run& run, int kv_head) const {
    const int count = run.row_count * group_;
    Queries queries(*this, run, kv_head);
    std::vector<float> merged(static_cast<size_t>(count) * value_dim_);
    RunningSoftmax running(merged.data(), count);
    const int first = first_partition(params_, run.position(0));
    const int last = last_partition(kv_len_of(params_, run, run.row_count - 1));
    queries.compute_attention(first, running.out, running.maximum.data(), running.sum.data());
    std::vector<float> partial(first < last ? static_cast<size_t>(count) * (value_dim_ + 2) : 0);
    for (int p = first + 1; p <= last; ++p) {
      float* maximum = partial.data() + static_cast<size_t>(count) * value_dim_;
      float* sum = maximum + count;
      queries.compute_attention(p, partial.data(), maximum, sum);
      for (int n = 0; n < count; ++n) {
        running.merge(n, value_dim_, partial.data() + static_cast<size_t>(n) * value_dim_, maximum[n], sum[n]);
      }
    }
    for (int n = 0; n < count; ++n) running.normalise(n, value_dim_, sink(kv_head * group_ + n % group_));
    const size_t width = static_cast<size_t>(group_) * value_dim_;
    for (int row = 0; row < run.row_count; ++row) {
      std::copy_n(merged.data() + row * width, width, out_row(run, row, kv_head));
    }
  }

  float* out_row(const Run& run, int row, int kv_head) const {
    const size_t index = static_cast<size_t>(run.span->first_token + run.first_token + row);
    return out_ + (index * params_.num_heads + static_cast<size_t>(kv_head) * group_) * value_dim_;
  }

  const float* sink(int head) const { return params_.sinks == nullptr ? nullptr : params_.sinks + head; }

  const AttentionParams& params_;
  const HeadsView& q_;
  float* workspace_;
  float* out_;
  int group_;
  int value_dim_;
};

}  // namespace

size_t attention_workspace_floats(const AttentionParams& params) {
  size_t partials = 0;
  for (int s = 0; s < params.span_count; ++s) {
    const AttentionSpan& span = params.spans[s];
    if (!is_split(params, span)) continue;
    for (int row = 0; row < span.count; ++row) {
      const int first = first_partition(params, span.first_position + row);
      partials += static_cast<size_t>(last_partition(kv_len_of(params, span, row)) - first + 1);
    }
  }
  return partials * params.layout.num_kv_heads * partial_floats(params);
}

void paged_attention(ThreadPool& pool, const AttentionParams& params, const HeadsView& q, float* workspace,
                     float* out) {
  const Attention attention(params, q, workspace, out);
  const std::vector<Task> tasks = plan(params);
  pool.parallel_for(static_cast<int>(tasks.size()), [&](int index) { attention.run(tasks[index]); });
  for (const Task& task : tasks) {
    if (task.partition >= 0 && task.partition == first_partition(params, task.run.position(0))) attention.merge(task);
  }
}

}  // namespace turbomind
