#include "device/cuda/operators.h"

#include <string>

#include "device/cuda/sampler.h"
#include "kernels/all_operations.h"
#include "kernels/cuda/linear/gemms.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

std::shared_ptr<std::remove_pointer_t<cudaStream_t>> new_stream() {
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return {stream, cudaStreamDestroy};
}

void release_staging(void* data, size_t) {
  cudaFreeHost(data);
}

}  // namespace

CudaOperators::CudaOperators(CudaRank rank) : CudaOperators(std::move(rank), new_stream()) {}

CudaOperators::CudaOperators(CudaRank rank, Stream stream)
    : rank_(std::move(rank)),
      shared_stream_(std::move(stream)),
      stream_(shared_stream_.get()),
      graphs_(stream_, rank_) {
  gemm_ = cuda::make_gemm();
  counters_ = std::make_unique<cuda::SplitCounters>(stream_);
  latents_ = std::make_unique<CudaLatents>(*this);
  prefill_ = std::make_unique<CudaPrefill>(*this);
  grouped_ = std::make_unique<CudaGrouped>(*this, *gemm_);
  scaled_ = std::make_unique<CudaScaled>(*this, *gemm_);
}

CudaOperators::~CudaOperators() {
  cudaStreamSynchronize(stream_);
  graphs_.clear();
}

const OperationTable& CudaOperators::operations() const {
  static const OperationTable all = OperationTable::of<CudaOperators>(AllOperations{});
  return all;
}

std::unique_ptr<Operators> CudaOperators::make_alongside() {
  return std::unique_ptr<Operators>(new CudaOperators({}, shared_stream_));
}

// ---- memory ----

AlignedBuffer CudaOperators::allocate(size_t bytes, MemoryUse use) {
  try {
    AlignedBuffer memory = cuda::allocate(bytes);
    size_t& taken = taken_[static_cast<size_t>(use)];
    taken = use == MemoryUse::kCache ? bytes : taken + bytes;  // a new cache takes the place of the old one
    return memory;
  } catch (const cuda::OutOfMemory&) {
    throw out_of_memory(bytes, use);
  }
}

void CudaOperators::expect(size_t bytes, MemoryUse use) const {
  if (free_memory() < bytes) throw out_of_memory(bytes, use);
}

Error CudaOperators::out_of_memory(size_t bytes, MemoryUse use) const {
  static constexpr std::array kNames = {"weights", "steps", "the cache"};
  static constexpr std::array kAdvice = {
      "use weight_bits 8 or 4, a checkpoint of fewer bits or a smaller model",
      "lower max_prefill_token_num, num_tokens_per_iter or max_batch_size",
      "lower cache_max_entry_count, or use quant_policy 8 or 4",
  };
  const auto mebibytes = [](size_t count) { return std::to_string((count + (size_t{1} << 20) - 1) >> 20) + " MiB"; };
  std::string text = "not enough GPU memory: " + mebibytes(bytes) + " for " + kNames[static_cast<size_t>(use)] + ": " +
                     std::to_string(free_memory() >> 20) + " MiB are free";
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i] > 0) text += ", " + mebibytes(taken_[i]) + " went to " + kNames[i];
  }
  return Error(ErrorCode::kUnavailable, text + "; " + kAdvice[static_cast<size_t>(use)] + ", or free the GPU");
}

AlignedBuffer CudaOperators::allocate_staging(size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  cuda::check(cudaMallocHost(&data, bytes), "allocating pinned memory");
  return AlignedBuffer(data, bytes, release_staging);
}

void CudaOperators::transfer(Transfer transfer, const void* source, size_t bytes, void* destination) {
  if (bytes == 0) return;
  const auto copy = [&](cudaStream_t stream, cudaMemcpyKind kind, const char* doing) {
    cuda::check(cudaMemcpyAsync(destination, source, bytes, kind, stream), doing);
  };
  switch (transfer) {
    case Transfer::kStagedUpload:
      if (cuda::StagedPieces::takes(source, bytes, destination)) return stage(source, bytes, destination);
      [[fallthrough]];
    case Transfer::kUpload:
      return copy(stream_, cudaMemcpyHostToDevice, "copying to the GPU");
    case Transfer::kDownload:
      return copy(stream(), cudaMemcpyDeviceToHost, "copying from the GPU");
    case Transfer::kWithin:
      return copy(stream(), cudaMemcpyDeviceToDevice, "copying within the GPU");
  }
}

void CudaOperators::stage(const void* source, size_t bytes, void* destination) {
  if (staged_.is_full() || staged_.has(destination)) upload_staged();
  staged_.add(source, bytes, destination);
}

void CudaOperators::upload_staged() {
  if (staged_.count == 0) return;
  cuda::upload_pieces(stream_, staged_);
  staged_ = {};
}

void CudaOperators::lay_out(LinearWeight& weight) {
  if (weight.format == WeightFormat::kInt4 || !cuda::has_ring(weight)) return;
  const PackedShape shape = packed_shape(weight);
  expect(shape.quantized_bytes(), MemoryUse::kWeights);
  const AlignedBuffer rows = cuda::allocate(shape.quantized_bytes());
  cuda::unpack_weight(stream(), weight, 0, shape.out_features, shape.padded_features(), rows.as<uint8_t>());
  copy(rows.as<void>(), rows.size(), const_cast<void*>(weight.data));
  wait();
  weight.is_row_major = true;
}

void CudaOperators::wait() {
  upload_staged();
  cuda::check(cudaStreamSynchronize(stream_), "waiting for the GPU");
  rank_.check();
}

void CudaOperators::wait_for(cudaEvent_t event) {
  cuda::check(cudaEventSynchronize(event), "waiting for the GPU");
  rank_.check();
}

void CudaOperators::fill_zero(void* data, size_t bytes) {
  if (bytes > 0) cuda::check(cudaMemsetAsync(data, 0, bytes, stream()), "clearing memory of the GPU");
}

std::unique_ptr<TokenSampler> CudaOperators::make_sampler(int vocab_size, int max_choices) {
  return std::make_unique<CudaSampler>(*this, vocab_size, max_choices);
}

cuda::Scratch CudaOperators::scratch(size_t bytes) {
  if (scratch_.size() < bytes) {
    cuda::check(cudaStreamSynchronize(stream_), "waiting for the GPU");
    graphs_.clear();
    taken_[static_cast<size_t>(MemoryUse::kSteps)] -= scratch_.size();
    scratch_ = {};
    scratch_ = allocate(bytes);
  }
  return {scratch_.as<void>(), scratch_.size()};
}

cuda::LinearScratch CudaOperators::linear_scratch(size_t bytes) {
  return {gemm_.get(), scratch(bytes), counters_->data(), cuda::GemmScales::kNone};
}

// ---- a step ----

CudaSpans& CudaOperators::spans_of(SpanSet set) {
  std::vector<CudaSpans>& tables = spans_[static_cast<size_t>(set.use)];
  if (tables.size() <= static_cast<size_t>(set.table)) tables.resize(static_cast<size_t>(set.table) + 1);
  return tables[static_cast<size_t>(set.table)];
}

void CudaOperators::reserve_spans(int table_count, int span_count, size_t block_count) {
  for (int table = 0; table < table_count; ++table) {
    spans_of({SpanUse::kTokens, table}).reserve(*this, span_count, block_count);
  }
}

void CudaOperators::set_spans(SpanSet set, std::vector<AttentionSpan> spans, int block_len) {
  const bool is_of_tokens = set.use == SpanUse::kTokens;
  spans_of(set).set(*this, spans, block_len, is_of_tokens);
  // Rows and plans are the same for all tables.
  if (!is_of_tokens || set.table > 0) return;
  int32_t rows = 0;
  for (const AttentionSpan& span : spans) rows += span.count;
  set_row_count(rows);
  latents_->set_spans(spans_of(set).filled(), spans_of(set).padded_count());
  prefill_->set_spans(spans_of(set).filled());
}

void CudaOperators::set_empty_spans(const DecodingShape& shape) {
  for (CudaSpans& spans : spans_[static_cast<size_t>(SpanUse::kTokens)]) spans.set_empty(*this, shape);
  set_row_count(0);
  // A plan depends on how many sequences there are; these look at one key.
  std::vector<cuda::DeviceSpan> rows;
  for (int32_t row = 0; row < shape.rows; ++row) rows.push_back({row, 1, 0, 0});
  prefill_->set_spans(rows);
  latents_->set_spans(std::move(rows), shape.rows);
}

void CudaOperators::set_row_count(int32_t rows) {
  if (row_count_.size() == 0) row_count_ = Staged(*this, sizeof(rows));
  *row_count_.host<int32_t>() = rows;
  row_count_.upload(*this, sizeof(rows));
}

void CudaOperators::run_step(int rows, bool is_repeatable, const std::function<void()>& body) {
  if (!is_repeatable || !uses_graphs_) return body();
  upload_staged();  // not as a part of the graph
  graphs_.run(shape_of(rows), body);
}

bool CudaOperators::prepare(int rows, const std::function<void()>& body) {
  upload_staged();
  return graphs_.prepare(shape_of(rows), body);
}

void CudaOperators::warm_up(const std::function<void()>& body) {
  const cuda::WarmUp warm_up;
  body();
}

// ---- operators ----

void CudaOperators::linear(const LinearWeight& weight, const LinearInput& input, int rows, const TypedRows& y,
                           bool accumulate) {
  cuda::LinearScratch memory = linear_scratch(cuda::linear_scratch_bytes(weight, rows));
  memory.scales = scaled_->scales_for(weight, rows);
  const bool makes_rows = cuda::linear_types(weight, rows, memory.scales).makes_rows;
  cuda::linear(stream(), memory, weight, makes_rows ? input : as_rows(input, rows, weight.in_features), rows, y,
               accumulate);
}

void CudaOperators::run(const HeadLinear& op) {
  cuda::head_linear(stream(), linear_scratch(cuda::head_linear_scratch_bytes(op)), op);
}

void CudaOperators::rope_and_write(const RopeTable& table, const AttentionParams& params, const HeadsView& q,
                                   const float* factors, const HeadsView& k, const HeadsView& v) {
  for (const cuda::DeviceSpans& group : spans_of(params.set).groups()) {
    if (group.span_count == 0) continue;
    const bool rounds_queries = group.max_tokens > 1 && q.heads > 0 && prefill_->knows(params);
    cuda::rope_and_write(stream(), table, params, group, q, factors, k, v, rounds_queries);
    if (rounds_queries) prefill_->set_rounded(q);
  }
}

DType CudaOperators::attention_output_type(const AttentionParams& params, DType requested) const {
  return requested == DType::kBFloat16 && !cuda::is_latent_attention(params) ? requested : DType::kFloat32;
}

void CudaOperators::paged_attention(const AttentionParams& params, const HeadsView& q, const TypedRows& out) {
  if (out.type == DType::kFloat32 && latents_->compute(params, spans_of(params.set).blocks(), q, out.floats())) return;
  const CudaSpans& spans = spans_of(params.set);
  const bool are_prompts_done = prefill_->compute(params, spans.groups().back(), q, out);
  for (const cuda::DeviceSpans& group : spans.groups()) {
    if (group.span_count == 0 || (group.max_tokens > 1 && are_prompts_done)) continue;
    const size_t floats = cuda::max_attention_workspace_floats(params);  // one size, so that it never grows
    auto* workspace = scratch(cuda::scratch_bytes<float>(floats)).take<float>(floats);
    cuda::paged_attention(stream(), params, group, q, workspace, out, counters_->data());
  }
}

void CudaOperators::route(const RouterParams& params, const float* logits, int rows, int32_t* experts, float* weights) {
  if (params.token_experts != nullptr || params.score == RouterScore::kSqrtSoftplus) {
    throw invalid_argument("a router by tokens or square roots of softplus has no kernel on GPUs");
  }
  const auto* row_count = row_count_.size() > 0 ? row_count_.device<int32_t>() : nullptr;
  cuda::route(stream(), params, logits, rows, row_count, experts, weights);
}

const cuda::ExpertTable& CudaOperators::table_of(const std::vector<ExpertWeight>& experts) {
  Experts& known = experts_[experts.data()];
  if (known.table.count == 0) {
    const size_t bytes = experts.size() * sizeof(ExpertWeight);
    known.on_device = allocate(bytes, MemoryUse::kWeights);
    upload(experts.data(), bytes, known.on_device.as<void>());
    known.table = {experts.front(), known.on_device.as<ExpertWeight>(), static_cast<int>(experts.size())};
  }
  return known.table;
}

void CudaOperators::add_experts(Activation activation, const std::vector<ExpertWeight>& experts, const float* x,
                                int rows, int top_k, const int32_t* chosen, const float* weights, float* y) {
  cuda::ExpertTable table = table_of(experts);
  table.library = grouped_->kernel_for(table, rows, top_k);
  const cuda::LinearScratch memory = linear_scratch(cuda::expert_scratch_bytes(table, rows, top_k));
  cuda::add_experts(stream(), memory, activation, table, x, rows, top_k, chosen, weights, y);
}

}  // namespace turbomind
