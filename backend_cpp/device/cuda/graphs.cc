#include "device/cuda/graphs.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_memory.h"

namespace turbomind {

namespace {

constexpr int kMaxRows = 512;
constexpr int kMinContextBound = 512;

// Of graphs that are captured before the first step; each takes one or two MiB and some hundredths of a second.
constexpr size_t kMaxPrepared = 128;
constexpr size_t kMinFreeMemory = size_t{256} << 20;  // that they leave

// Few sizes, near to each other where few rows too many cost the most.
int rounded_up_rows(int rows) {
  if (rows <= 8) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  const int step = rows <= 64 ? 8 : rows <= 128 ? 16 : 32;
  return (rows + step - 1) / step * step;
}

}  // namespace

int CudaGraphs::padded_rows(int rows, bool is_decoding) {
  return is_decoding && rows <= kMaxRows ? rounded_up_rows(rows) : rows;
}

int CudaGraphs::context_bound(int context) {
  return std::max(kMinContextBound, static_cast<int>(std::bit_ceil(static_cast<unsigned>(context))));
}

std::vector<DecodingShape> CudaGraphs::shapes(int max_sequences, int max_context) {
  struct Ranked {
    int rank;
    DecodingShape shape;
  };
  std::vector<Ranked> all;
  const int last_rows = rounded_up_rows(std::min(max_sequences, kMaxRows));
  const int last_context = context_bound(max_context);
  int rank_of_context = 0;
  for (int context = kMinContextBound; context <= last_context; context *= 2, rank_of_context += 2) {
    int rank = rank_of_context;
    for (int rows = 1; rows <= last_rows; rows = rounded_up_rows(rows + 1)) all.push_back({rank++, {rows, context}});
  }
  std::stable_sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
  std::vector<DecodingShape> shapes;
  for (const Ranked& ranked : all) shapes.push_back(ranked.shape);
  shapes.resize(std::min(shapes.size(), kMaxPrepared));
  return shapes;
}

void CudaGraphs::run(const DecodingShape& shape, const std::function<void()>& body) {
  if (shape.rows > kMaxRows) return body();
  const auto known = graphs_.find(key_of(shape));
  if (known != graphs_.end()) {
    rank_.check();  // a graph goes around all_reduce
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
  if (seen_.insert(key_of(shape)).second) return body();
  Graph graph = captured(body);
  if (graph && cudaGraphLaunch(graph.get(), stream_) != cudaSuccess) graph.reset();
  if (!graph) {
    cudaGetLastError();  // the next call is not to report what failed
    body();
  }
  graphs_[key_of(shape)] = std::move(graph);
}

bool CudaGraphs::prepare(const DecodingShape& shape, const std::function<void()>& body) {
  if (cuda::free_device_memory() < kMinFreeMemory) return false;
  Graph graph = captured(body);
  if (graph && cudaGraphUpload(graph.get(), stream_) != cudaSuccess) graph.reset();
  if (!graph) {
    cudaGetLastError();
    return false;
  }
  graphs_[key_of(shape)] = std::move(graph);
  return true;
}

CudaGraphs::Graph CudaGraphs::captured(const std::function<void()>& body) {
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

}  // namespace turbomind
