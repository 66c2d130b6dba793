#include "device/cuda_operators.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>

#include "device/cuda_sampler.h"
#include "device/rank_group.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/embedding.h"
#include "kernels/cuda/elementwise/norm.h"
#include "kernels/cuda/elementwise/rope.h"
#include "kernels/cuda/lora/lora.h"

namespace turbomind {

namespace {

constexpr int kMostRepeatedRows = 512;
constexpr int kLeastContextBound = 512;

// Of graphs that are captured before the first step; each takes one or two MiB and some hundredths of a second.
constexpr size_t kMostPrepared = 128;
constexpr size_t kLeastFreeMemory = size_t{256} << 20;  // that they leave

void require_a_gpu() {
  int count = 0;
  cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaSuccess && count == 0) found = cudaErrorNoDevice;
  if (found != cudaSuccess) {
    throw Error(ErrorCode::kUnavailable, std::string("device is cuda, but no usable NVIDIA GPU was found: ") +
                                             cudaGetErrorString(found) + cuda::advice_on(found));
  }
}

std::unique_ptr<Operators> make_cuda() {
  require_a_gpu();
  return std::make_unique<CudaOperators>();
}

// Rank r is GPU r of this machine.
class CudaRankGroup final : public RankGroup {
 public:
  // Throws Error when there are fewer GPUs, or no NCCL.
  explicit CudaRankGroup(int ranks) : ranks_(ranks) {
    if (const int found = cuda_device_count(); found < ranks) {
      throw invalid_argument("tp=" + std::to_string(ranks) + " needs " + std::to_string(ranks) + " GPUs, found " +
                             std::to_string(found));
    }
    group_ = std::make_shared<cuda::NcclGroup>(ranks);
  }

  int size() const override { return ranks_; }
  std::unique_ptr<Operators> make_operators(int rank) override {
    cuda::check(cudaSetDevice(rank), "choosing a GPU");
    return std::make_unique<CudaOperators>(CudaRank{group_, rank});
  }
  void fail() noexcept override { group_->fail(); }

 private:
  int ranks_;
  std::shared_ptr<cuda::NcclGroup> group_;
};

std::unique_ptr<RankGroup> make_cuda_group(int ranks) {
  require_a_gpu();
  return std::make_unique<CudaRankGroup>(ranks);
}

// While one rank waits for another inside of a sum, nothing can be loaded into its GPU, and a thread that tries holds
// what the other needs. CUDA reads this when it is first called.
void load_kernels_at_start() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

const bool is_added = add_cuda({cuda_device_count, make_cuda, make_cuda_group, load_kernels_at_start});

// Few sizes, near to each other where few rows too many cost the most.
int rounded_up_rows(int rows) {
  if (rows <= 8) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  const int step = rows <= 64 ? 8 : rows <= 128 ? 16 : 32;
  return (rows + step - 1) / step * step;
}

int rounded_up_context(int context) {
  return std::max(kLeastContextBound, static_cast<int>(std::bit_ceil(static_cast<unsigned>(context))));
}

void release_staging(void* data, size_t) {
  cudaFreeHost(data);
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

CudaOperators::CudaOperators(CudaRank rank) : rank_(std::move(rank)) {
  cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  gemm_ = cuda::make_gemm();
  counters_ = std::make_unique<cuda::SplitCounters>(stream_);
  latents_ = std::make_unique<CudaLatents>(*this);
  grouped_ = std::make_unique<CudaGrouped>(*this, *gemm_);
  scaled_ = std::make_unique<CudaScaled>(*this, *gemm_);
}

CudaOperators::~CudaOperators() {
  cudaStreamSynchronize(stream_);
  graphs_.clear();
  cudaStreamDestroy(stream_);
}

// ---- memory ----

AlignedBuffer CudaOperators::allocate(size_t bytes, MemoryUse use) {
  try {
    AlignedBuffer memory = cuda::allocate(bytes);
    size_t& taken = taken_[static_cast<size_t>(use)];
    taken = use == MemoryUse::kCache ? bytes : taken + bytes;  // a new cache takes the place of the old one
    return memory;
  } catch (const cuda::OutOfMemory&) {
    throw no_room(bytes, use);
  }
}

void CudaOperators::expect(size_t bytes, MemoryUse use) const {
  if (free_memory() < bytes) throw no_room(bytes, use);
}

Error CudaOperators::no_room(size_t bytes, MemoryUse use) const {
  static constexpr std::array kNames = {"weights", "steps", "the cache"};
  static constexpr std::array kAdvice = {
      "use weight_bits 8 or 4, a checkpoint of fewer bits or a smaller model",
      "lower max_prefill_token_num, num_tokens_per_iter or max_batch_size",
      "lower cache_max_entry_count, or use quant_policy 8 or 4",
  };
  const auto mebibytes = [](size_t count) { return std::to_string((count + (size_t{1} << 20) - 1) >> 20) + " MiB"; };
  std::string text = "the GPU has no room for " + mebibytes(bytes) + " for " + kNames[static_cast<size_t>(use)] + ": " +
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

size_t CudaOperators::free_memory() const {
  return cuda::free_device_memory();
}

void CudaOperators::upload(const void* source, size_t bytes, void* destination) {
  if (bytes == 0) return;
  cuda::check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, stream_), "copying to the GPU");
}

void CudaOperators::upload_staged(const void* source, size_t bytes, void* destination) {
  if (bytes == 0) return;
  if (!cuda::StagedPieces::takes(source, bytes, destination)) return upload(source, bytes, destination);
  if (staged_.is_full() || staged_.has(destination)) bring_staged();
  staged_.add(source, bytes, destination);
}

void CudaOperators::bring_staged() {
  if (staged_.count == 0) return;
  cuda::bring_pieces(stream_, staged_);
  staged_ = {};
}

void CudaOperators::download_later(const void* source, size_t bytes, void* destination) {
  if (bytes == 0) return;
  cuda::check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, stream()), "copying from the GPU");
}

void CudaOperators::download(const void* source, size_t bytes, void* destination) {
  download_later(source, bytes, destination);
  cuda::check(cudaStreamSynchronize(stream_), "waiting for the GPU");
  if (rank_.group) rank_.group->check();
}

void CudaOperators::wait_for(cudaEvent_t event) {
  cuda::check(cudaEventSynchronize(event), "waiting for the GPU");
  if (rank_.group) rank_.group->check();
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

int CudaOperators::padded_rows(int rows, bool is_decoding) const {
  return is_decoding && rows <= kMostRepeatedRows ? rounded_up_rows(rows) : rows;
}

void CudaOperators::reserve_spans(int span_count, size_t block_count) {
  auto& [single, several, blocks] = spans_of(SpanSet::kTokens);
  blocks = Staged(*this, block_count * sizeof(int32_t));
  const auto padded = static_cast<size_t>(rounded_up_rows(span_count));
  for (SpanGroup* group : {&single, &several}) group->spans = Staged(*this, padded * sizeof(cuda::DeviceSpan));
}

void CudaOperators::set_spans(SpanSet set, std::vector<AttentionSpan> spans, int block_len) {
  auto& [single, several, blocks] = spans_of(set);
  const auto blocks_of = [block_len](const AttentionSpan& span) {
    return static_cast<size_t>((span.first_position + span.count + block_len - 1) / block_len);
  };
  size_t block_count = 0;
  int longest = 0;
  int most_rows = 0;
  int32_t rows = 0;
  for (const AttentionSpan& span : spans) {
    block_count += blocks_of(span);
    longest = std::max(longest, span.first_position + span.count);
    most_rows = std::max(most_rows, span.count);
    rows += span.count;
  }
  if (set == SpanSet::kTokens) set_row_count(rows);
  if (blocks.size() < block_count * sizeof(int32_t)) {
    graphs_.clear();  // they hold the old address
    blocks = Staged(*this, std::bit_ceil(block_count) * 2 * sizeof(int32_t));
  }
  single.filled.clear();
  several.filled.clear();
  int32_t next = 0;
  for (const AttentionSpan& span : spans) {
    SpanGroup& group = span.count == 1 ? single : several;
    group.filled.push_back({span.first_row, span.count, span.first_position, next});
    std::copy_n(span.blocks, blocks_of(span), blocks.host<int32_t>() + next);
    next += static_cast<int32_t>(blocks_of(span));
  }
  blocks.upload(*this, block_count * sizeof(int32_t));
  const int context = rounded_up_context(longest);
  const bool is_decoding = set == SpanSet::kTokens && several.filled.empty();
  if (set == SpanSet::kTokens) {
    std::vector<cuda::DeviceSpan> all = single.filled;
    all.insert(all.end(), several.filled.begin(), several.filled.end());
    const int count = static_cast<int>(all.size());
    latents_->set_spans(std::move(all), padded_rows(count, is_decoding));
  }
  upload_group(single, blocks, padded_rows(static_cast<int>(single.filled.size()), is_decoding), 1, context);
  upload_group(several, blocks, static_cast<int>(several.filled.size()), most_rows, context);
}

void CudaOperators::set_row_count(int32_t rows) {
  if (row_count_.size() == 0) row_count_ = Staged(*this, sizeof(rows));
  *row_count_.host<int32_t>() = rows;
  row_count_.upload(*this, sizeof(rows));
}

void CudaOperators::set_empty_spans(const DecodingShape& shape) {
  auto& [single, several, blocks] = spans_of(SpanSet::kTokens);
  single.filled.clear();
  several.filled.clear();
  set_row_count(0);
  // A plan depends on how many sequences there are; these look at one key.
  std::vector<cuda::DeviceSpan> rows;
  for (int32_t row = 0; row < shape.rows; ++row) rows.push_back({row, 1, 0, 0});
  latents_->set_spans(std::move(rows), shape.rows);
  upload_group(single, blocks, shape.rows, 1, shape.context);
  upload_group(several, blocks, 0, 0, shape.context);
}

void CudaOperators::upload_group(SpanGroup& group, const Staged& blocks, int span_count, int max_rows,
                                 int max_context) {
  const size_t bytes = static_cast<size_t>(span_count) * sizeof(cuda::DeviceSpan);
  if (group.spans.size() < bytes) {
    graphs_.clear();
    group.spans = Staged(*this, std::bit_ceil(bytes) * 2);
  }
  group.filled.resize(static_cast<size_t>(span_count));  // what this adds is empty
  std::copy(group.filled.begin(), group.filled.end(), group.spans.host<cuda::DeviceSpan>());
  group.spans.upload(*this, bytes);
  group.view = {group.spans.device<cuda::DeviceSpan>(), blocks.device<int32_t>(), span_count, max_rows, max_context};
}

void CudaOperators::run_step(int rows, bool is_repeatable, const std::function<void()>& body) {
  if (!is_repeatable || rows > kMostRepeatedRows) return body();
  const Shape shape = shape_of(rows);
  bring_staged();  // not as a part of the graph
  const auto known = graphs_.find(shape);
  if (known != graphs_.end()) {
    if (rank_.group) rank_.group->check();  // a graph goes around all_reduce
    if (!known->second) return body();
    const cudaError_t launched = cudaGraphLaunch(known->second.get(), stream_);
    if (launched == cudaSuccess) return;
    if (rank_.group) cuda::check(launched, "launching a step");  // the other ranks launch theirs
    cudaGetLastError();
    known->second.reset();
    return body();
  }
  if (rank_.group) return body();
  // The first step of a shape runs as it is, which gives scratch memory and libraries what they need.
  if (seen_.insert(shape).second) return body();
  Graph graph = captured(body);
  if (graph && cudaGraphLaunch(graph.get(), stream_) != cudaSuccess) graph.reset();
  if (!graph) {
    cudaGetLastError();  // the next call is not to report what failed
    body();
  }
  graphs_[shape] = std::move(graph);
}

std::vector<DecodingShape> CudaOperators::decoding_shapes(int most_rows, int most_context) const {
  struct Ranked {
    int rank;
    DecodingShape shape;
  };
  std::vector<Ranked> all;
  const int last_rows = rounded_up_rows(std::min(most_rows, kMostRepeatedRows));
  const int last_context = rounded_up_context(most_context);
  int rank_of_context = 0;
  for (int context = kLeastContextBound; context <= last_context; context *= 2, rank_of_context += 2) {
    int rank = rank_of_context;
    for (int rows = 1; rows <= last_rows; rows = rounded_up_rows(rows + 1)) all.push_back({rank++, {rows, context}});
  }
  std::stable_sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
  std::vector<DecodingShape> shapes;
  for (const Ranked& each : all) shapes.push_back(each.shape);
  shapes.resize(std::min(shapes.size(), kMostPrepared));
  return shapes;
}

void CudaOperators::rehearse(const std::function<void()>& body) {
  const cuda::Rehearsal rehearsal;
  body();
}

bool CudaOperators::prepare_step(int rows, const std::function<void()>& body) {
  bring_staged();
  if (free_memory() < kLeastFreeMemory) return false;
  Graph graph = captured(body);
  if (graph && cudaGraphUpload(graph.get(), stream_) != cudaSuccess) graph.reset();
  if (!graph) {
    cudaGetLastError();
    return false;
  }
  graphs_[shape_of(rows)] = std::move(graph);
  return true;
}

CudaOperators::Graph CudaOperators::captured(const std::function<void()>& body) {
  if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return {};
  bool is_whole = true;
  try {
    body();
  } catch (const Error&) {
    is_whole = false;
  }
  cudaGraph_t graph = nullptr;
  is_whole = cudaStreamEndCapture(stream_, &graph) == cudaSuccess && is_whole;
  cudaGraphExec_t executable = nullptr;
  if (is_whole && cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) executable = nullptr;
  if (graph != nullptr) cudaGraphDestroy(graph);
  return Graph(executable);
}

// ---- operators ----

void CudaOperators::embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  cuda::embed(stream(), table, tokens, rows, scale, y);
}

void CudaOperators::gather_rows(const float* x, const int32_t* indices, int count, int size, float* y) {
  cuda::gather_rows(stream(), x, indices, count, size, y);
}

void CudaOperators::scatter_rows(const float* x, const int32_t* indices, int count, int size, float* y,
                                 bool accumulate) {
  cuda::scatter_rows(stream(), x, indices, count, size, y, accumulate);
}

void CudaOperators::copy_heads(const HeadsView& from, const HeadsView& to) {
  cuda::copy_heads(stream(), from, to);
}

void CudaOperators::linear(const LinearWeight& weight, const float* x, int rows, float* y, bool accumulate) {
  linear_of(weight, x, rows, y, accumulate);
}

void CudaOperators::linear_of(const LinearWeight& weight, const LinearInput& input, int rows, float* y,
                              bool accumulate) {
  const cuda::GemmScales scales = scaled_->scales_for(weight, rows);
  const LinearInput taken = cuda::makes_rows(weight, rows, scales) ? input : make_rows(input, rows, weight.in_features);
  cuda::LinearScratch memory = linear_scratch(cuda::linear_scratch_bytes(weight, rows));
  memory.scales = scales;
  cuda::linear(stream(), memory, weight, taken, rows, y, accumulate);
}

void CudaOperators::head_linear(const LinearWeight& weight, const HeadsView& x, const HeadsView& y) {
  const size_t bytes = cuda::head_linear_scratch_bytes(weight, x.heads, x.rows);
  cuda::head_linear(stream(), linear_scratch(bytes), weight, x, y);
}

void CudaOperators::lora_shrink(const LoraRows& adapters, const float* x, int in_features, float* shrunk) {
  cuda::lora_shrink(stream(), adapters, x, in_features, shrunk);
}

void CudaOperators::lora_expand(const LoraRows& adapters, const float* shrunk, int out_features, float* y) {
  cuda::lora_expand(stream(), adapters, shrunk, out_features, y);
}

void CudaOperators::norm(const NormWeight& weight, const float* x, int rows, int size, float* y) {
  cuda::norm(stream(), weight, x, rows, size, y);
}

void CudaOperators::norm_heads(const NormWeight& weight, const HeadsView& heads) {
  cuda::norm_heads(stream(), weight, heads);
}

void CudaOperators::rope_table(const RopeAngles& angles, int rows, float* cosine, float* sine) {
  cuda::rope_table(stream(), angles, rows, cosine, sine);
}

void CudaOperators::rope(const RopeTable& table, const HeadsView& heads, const float* factors) {
  cuda::rope(stream(), table, heads, factors);
}

void CudaOperators::activate_gated(Activation activation, const float* gate_up, int rows, int size, float* y) {
  cuda::activate_gated(stream(), activation, gate_up, rows, size, y);
}

void CudaOperators::activate(Activation activation, const float* x, int rows, int size, float* y) {
  cuda::activate(stream(), activation, x, rows, size, y);
}

void CudaOperators::sigmoid(int count, float* x) {
  cuda::sigmoid(stream(), count, x);
}

void CudaOperators::clamp(float limit, int rows, int size, float* x) {
  cuda::clamp(stream(), limit, rows, size, x);
}

void CudaOperators::scale_and_cap(float scale, float softcap, int rows, int size, float* x) {
  cuda::scale_and_cap(stream(), scale, softcap, rows, size, x);
}

void CudaOperators::add_scaled(float scale, const float* x, int rows, int size, float* y) {
  cuda::add_scaled(stream(), scale, x, rows, size, y);
}

void CudaOperators::all_reduce(float* x, size_t count) {
  if (rank_.group) rank_.group->all_reduce(rank_.rank, x, count, stream());
}

void CudaOperators::all_gather(float* x, size_t count) {
  if (rank_.group) rank_.group->all_gather(rank_.rank, x, count, stream());
}

void CudaOperators::write_cache(const AttentionParams& params, const HeadsView& k, const HeadsView& v) {
  const Spans& spans = spans_of(params.set);
  for (const SpanGroup* group : {&spans.single, &spans.several}) {
    if (group->view.span_count > 0) cuda::write_cache(stream(), params, group->view, k, v);
  }
}

void CudaOperators::rope_and_write(const RopeTable& table, const AttentionParams& params, const HeadsView& q,
                                   const float* factors, const HeadsView& k, const HeadsView& v) {
  const Spans& spans = spans_of(params.set);
  for (const SpanGroup* group : {&spans.single, &spans.several}) {
    if (group->view.span_count == 0) continue;
    cuda::rope_and_write(stream(), table, params, group->view, q, factors, k, v);
  }
}

void CudaOperators::paged_attention(const AttentionParams& params, const HeadsView& q, float* out) {
  const Spans& spans = spans_of(params.set);
  if (latents_->attend(params, spans.blocks.device<int32_t>(), q, out)) return;
  for (const SpanGroup* group : {&spans.single, &spans.several}) {
    if (group->view.span_count == 0) continue;
    const size_t floats = cuda::most_attention_workspace_floats(params);  // one size, so that it never grows
    auto* workspace = scratch(cuda::scratch_bytes<float>(floats)).take<float>(floats);
    cuda::paged_attention(stream(), params, group->view, q, workspace, out);
  }
}

void CudaOperators::route(const RouterParams& params, const float* logits, int rows, int32_t* experts, float* weights) {
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
