// The operators on a GPU: kernels/cuda on one stream.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/kernel_choice.h"
#include "device/cuda/graphs.h"
#include "device/cuda/grouped.h"
#include "device/cuda/latents.h"
#include "device/cuda/prefill.h"
#include "device/cuda/scaled.h"
#include "device/cuda/spans.h"
#include "device/operators.h"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/moe/moe.h"

namespace turbomind {

class CudaOperators final : public Operators, private PreparedSteps {
 public:
  // Works on the current device. Throws Error (kUnavailable) when there is none that this build can use.
  explicit CudaOperators(CudaRank rank = {});
  ~CudaOperators() override;

  // On the same stream.
  std::unique_ptr<Operators> make_alongside() override;

  bool shares_host_memory() const override { return false; }
  AlignedBuffer allocate(size_t bytes, MemoryUse use = MemoryUse::kSteps) override;
  void expect(size_t bytes, MemoryUse use) const override;
  AlignedBuffer allocate_staging(size_t bytes) override;
  size_t free_memory() const override { return cuda::free_device_memory(); }
  void transfer(Transfer transfer, const void* source, size_t bytes, void* destination) override;
  void lay_out(LinearWeight& weight) override;
  void wait() override;
  void fill_zero(void* data, size_t bytes) override;
  std::unique_ptr<TokenSampler> make_sampler(int vocab_size, int max_choices) override;

  int padded_rows(int rows, bool is_decoding) const override { return CudaGraphs::padded_rows(rows, is_decoding); }
  void reserve_spans(int table_count, int span_count, size_t block_count) override;
  void set_spans(SpanSet set, std::vector<AttentionSpan> spans, int block_len) override;
  void run_step(int rows, bool is_repeatable, const std::function<void()>& body) override;
  PreparedSteps* prepared_steps() override { return uses_graphs_ ? this : nullptr; }

  const OperationTable& operations() const override;
  void embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) override {
    cuda::embed(stream(), table, tokens, rows, scale, y);
  }
  void scatter_rows(const float* x, const int32_t* indices, int count, int size, float* y, bool accumulate) override {
    cuda::scatter_rows(stream(), x, indices, count, size, y, accumulate);
  }
  void copy_heads(const HeadsView& from, const HeadsView& to) override { cuda::copy_heads(stream(), from, to); }
  LinearTypes types_of(const LinearWeight& weight, int rows) override { return scaled_->types_of(weight, rows); }
  void linear(const LinearWeight& weight, const LinearInput& input, int rows, const TypedRows& y,
              bool accumulate) override;
  void norm(const NormWeight& weight, const HeadsView& x, const HeadsView& y) override {
    cuda::norm(stream(), weight, x, y);
  }
  void rope_table(const RopeAngles& angles, int rows, float* cosine, float* sine) override {
    cuda::rope_table(stream(), angles, rows, cosine, sine);
  }
  void rope(const RopeTable& table, const HeadsView& heads, const float* factors) override {
    cuda::rope(stream(), table, heads, factors);
  }
  void activate(Activation activation, const HeadsView& gate, const HeadsView& up, const HeadsView& y) override {
    cuda::activate(stream(), activation, gate, up, y);
  }
  void apply(const Pointwise& function, const HeadsView& x) override { cuda::apply(stream(), function, x); }
  void add_scaled(float scale, const float* x, int rows, int size, float* y) override {
    cuda::add_scaled(stream(), scale, x, rows, size, y);
  }
  void all_reduce(float* x, size_t count) override {
    if (rank_.group) rank_.group->all_reduce(rank_.rank, x, count, stream());
  }
  void all_gather(float* x, size_t count) override {
    if (rank_.group) rank_.group->all_gather(rank_.rank, x, count, stream());
  }
  void rope_and_write(const RopeTable& table, const AttentionParams& params, const HeadsView& q, const float* factors,
                      const HeadsView& k, const HeadsView& v) override;
  DType attention_output_type(const AttentionParams& params, DType requested) const override;
  void paged_attention(const AttentionParams& params, const HeadsView& q, const TypedRows& out) override;
  void route(const RouterParams& params, const float* logits, int rows, int32_t* experts, float* weights) override;
  void add_experts(Activation activation, const std::vector<ExpertWeight>& experts, const float* x, int rows, int top_k,
                   const int32_t* chosen, const float* weights, float* y) override;

  // The operation that needs scratch memory.
  void run(const HeadLinear& op);

  // ---- for what else works on this stream ----

  // Where to launch: what was staged before is there.
  cudaStream_t stream() {
    upload_staged();
    return stream_;
  }
  // The same, as what kernels take first.
  cudaStream_t queue() { return stream(); }
  // Records when the stream has come so far.
  void record_event(cudaEvent_t event) { cuda::check(cudaEventRecord(event, stream_), "marking a place in a step"); }
  // Scratch memory of at least `bytes`; larger memory makes every captured graph void.
  cuda::Scratch scratch(size_t bytes);
  // For whoever gives up memory that a captured step may use.
  void clear_graphs() { graphs_.clear(); }
  void wait_for(cudaEvent_t event);

 private:
  using Stream = std::shared_ptr<std::remove_pointer_t<cudaStream_t>>;
  CudaOperators(CudaRank rank, Stream stream);

  std::vector<DecodingShape> shapes(int max_sequences, int max_context) const override {
    return CudaGraphs::shapes(max_sequences, max_context);
  }
  void set_empty_spans(const DecodingShape& shape) override;
  void warm_up(const std::function<void()>& body) override;
  bool prepare(int rows, const std::function<void()>& body) override;
  void erase(int rows) override { graphs_.erase(shape_of(rows)); }

  DecodingShape shape_of(int rows) { return {rows, spans_of({}).max_context()}; }
  void set_row_count(int32_t rows);
  CudaSpans& spans_of(SpanSet set);
  const cuda::ExpertTable& table_of(const std::vector<ExpertWeight>& experts);
  cuda::LinearScratch linear_scratch(size_t bytes);

  void stage(const void* source, size_t bytes, void* destination);
  void upload_staged();
  Error out_of_memory(size_t bytes, MemoryUse use) const;

  CudaRank rank_;
  Stream shared_stream_;
  cudaStream_t stream_;
  CudaGraphs graphs_;
  const bool uses_graphs_ = requested_kernels("turbomind", "graphs") != KernelSource::kOff;
  std::array<size_t, 3> taken_{};  // bytes, by MemoryUse
  std::unique_ptr<cuda::Gemm> gemm_;
  std::unique_ptr<cuda::SplitCounters> counters_;
  AlignedBuffer scratch_;
  cuda::StagedPieces staged_;  // not brought yet

  std::array<std::vector<CudaSpans>, kSpanUses> spans_;  // by SpanSet
  Staged row_count_;  // int32; the rows of the spans of tokens. Empty before there are any
  std::unique_ptr<CudaLatents> latents_;
  std::unique_ptr<CudaPrefill> prefill_;
  std::unique_ptr<CudaGrouped> grouped_;
  std::unique_ptr<CudaScaled> scaled_;

  // The experts of a layer, by the address of the host's list.
  struct Experts {
    AlignedBuffer on_device;
    cuda::ExpertTable table;
  };
  std::map<const ExpertWeight*, Experts> experts_;
};

}  // namespace turbomind
