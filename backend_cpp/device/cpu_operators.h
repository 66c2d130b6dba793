// The operators on the CPU: kernels/cpu on a pool of threads.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "device/host_exchange.h"
#include "device/operators.h"
#include "kernels/compressed_attention.h"

namespace turbomind {

// Memory this process may still use, in bytes: what the system has available, within the cgroup's limit.
size_t available_memory();

// Which rank of a group somebody is; of none, without an exchange.
struct RankLink {
  std::shared_ptr<HostExchange> exchange;
  int rank = 0;
};

class CpuOperators final : public Operators {
 public:
  // threads 0: all CPUs. Throws Error(kInvalidArgument) where LMDEPLOY_CPU_ISA names what this processor has not.
  explicit CpuOperators(int threads, RankLink link = {});

  // Of the kernels.
  ThreadPool& queue() { return pool_; }

  void lower_priority() override { pool_.lower_priority(); }
  bool shares_host_memory() const override { return true; }
  AlignedBuffer allocate(size_t bytes, MemoryUse) override { return AlignedBuffer(bytes); }
  AlignedBuffer allocate_staging(size_t bytes) override { return AlignedBuffer(bytes); }
  size_t free_memory() const override { return available_memory(); }
  void transfer(Transfer transfer, const void* source, size_t bytes, void* destination) override;
  void fill_zero(void* data, size_t bytes) override { std::memset(data, 0, bytes); }

  void set_spans(SpanSet set, std::vector<AttentionSpan> spans, int) override {
    std::vector<std::vector<AttentionSpan>>& tables = spans_[static_cast<size_t>(set.use)];
    tables.resize(std::max(tables.size(), static_cast<size_t>(set.table) + 1));
    tables[static_cast<size_t>(set.table)] = std::move(spans);
  }

  const OperationTable& operations() const override;
  void embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) override {
    turbomind::embed(table, tokens, rows, scale, y);
  }
  void scatter_rows(const float* x, const int32_t* indices, int count, int size, float* y, bool accumulate) override;
  void copy_heads(const HeadsView& from, const HeadsView& to) override;
  LinearTypes types_of(const LinearWeight&, int) override { return {.makes_rows = true}; }
  void linear(const LinearWeight& weight, const LinearInput& input, int rows, const TypedRows& y,
              bool accumulate) override {
    turbomind::linear(pool_, linear_scratch_, weight, input, rows, y.floats(), accumulate);
  }
  using Operators::norm;
  void norm(const NormWeight& weight, const HeadsView& x, const HeadsView& y) override {
    turbomind::norm(pool_, weight, x, y);
  }
  void rope_table(const RopeAngles& angles, int rows, float* cosine, float* sine) override {
    turbomind::rope_table(pool_, angles, rows, cosine, sine);
  }
  void rope(const RopeTable& table, const HeadsView& heads, const float* factors) override {
    turbomind::rope(pool_, table, heads, factors);
  }
  using Operators::activate;
  void activate(Activation activation, const HeadsView& gate, const HeadsView& up, const HeadsView& y) override {
    turbomind::activate(pool_, activation, gate, up, y);
  }
  void apply(const Pointwise& function, const HeadsView& x) override { turbomind::apply(pool_, function, x); }
  void add_scaled(float scale, const float* x, int rows, int size, float* y) override {
    turbomind::add_scaled(pool_, scale, x, rows, size, y);
  }
  void all_reduce(float* x, size_t count) override {
    if (link_.exchange) link_.exchange->all_reduce(link_.rank, x, count);
  }
  void all_gather(float* x, size_t count) override {
    if (link_.exchange) link_.exchange->all_gather(link_.rank, x, count);
  }
  void rope_and_write(const RopeTable& table, const AttentionParams& params, const HeadsView& q, const float* factors,
                      const HeadsView& k, const HeadsView& v) override {
    turbomind::rope_and_write(pool_, table, with_spans(params), q, factors, k, v);
  }
  void paged_attention(const AttentionParams& params, const HeadsView& q, const TypedRows& out) override;
  void route(const RouterParams& params, const float* logits, int rows, int32_t* experts, float* weights) override {
    turbomind::route(pool_, params, logits, rows, experts, weights);
  }
  void add_experts(Activation activation, const std::vector<ExpertWeight>& experts, const float* x, int rows, int top_k,
                   const int32_t* chosen, const float* weights, float* y) override {
    turbomind::add_experts(pool_, expert_scratch_, activation, experts, x, rows, top_k, chosen, weights, y);
  }

  // The operations that need the spans.
  template <class Op>
    requires requires(Op op, AttentionParams params) { op.params = params; }
  void run(Op op) {
    op.params = with_spans(op.params);
    op.run(pool_);
  }
  template <class Op>
    requires requires(Op op) { op.cache_rows(); }
  void run(Op op) {
    for (CacheRows* rows : op.cache_rows()) rows->params = with_spans(rows->params);
    op.run(pool_);
  }

 private:
  AttentionParams with_spans(AttentionParams params) const;

  RankLink link_;
  ThreadPool pool_;
  LinearScratch linear_scratch_;
  ExpertScratch expert_scratch_;
  std::array<std::vector<std::vector<AttentionSpan>>, kSpanUses> spans_;  // by SpanSet
  AlignedBuffer attention_workspace_;                                     // grows
};

}  // namespace turbomind
