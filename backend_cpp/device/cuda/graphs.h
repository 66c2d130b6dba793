// CUDA graphs of decoding steps.
//
// Graphs of the shapes that come most often are captured before the first step; others when their shape comes the
// second time, but for models that are spread over GPUs, where one rank would wait inside of a sum for another that is
// still capturing. A shape is a number of rows and a bound of the context, both rounded up. Where it cannot be
// captured, it always runs as it is.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/operators.h"
#include "kernels/cuda/comm/nccl_group.h"

namespace turbomind {

// Which rank of a group somebody is; of none, without a group.
struct CudaRank {
  std::shared_ptr<cuda::NcclGroup> group;
  int rank = 0;

  // Throws Error when another rank has failed.
  void check() const {
    if (group) group->check();
  }
};

class CudaGraphs {
 public:
  // Of what is launched on `stream`.
  CudaGraphs(cudaStream_t stream, CudaRank rank) : stream_(stream), rank_(std::move(rank)) {}

  // ---- shapes ----

  // Value of Operators::padded_rows.
  static int padded_rows(int rows, bool is_decoding);
  // The bound that a step's shape has, if its longest sequence has this many tokens.
  static int context_bound(int context);
  // As PreparedSteps::shapes.
  static std::vector<DecodingShape> shapes(int max_sequences, int max_context);

  // ---- steps ----

  // Runs `body`, or a graph of what it launched for an earlier step of that shape.
  void run(const DecodingShape& shape, const std::function<void()>& body);
  // Makes the graph and launches nothing. Returns whether there was room.
  bool prepare(const DecodingShape& shape, const std::function<void()>& body);
  void erase(const DecodingShape& shape) { graphs_.erase(key_of(shape)); }
  // For whoever gives up memory that graphs may use.
  void clear() { graphs_.clear(); }

 private:
  using Key = std::pair<int, int>;
  struct Deleter {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Deleter>;

  static Key key_of(const DecodingShape& shape) { return {shape.rows, shape.context}; }
  // Null where it cannot be captured, for want of memory for example.
  Graph captured(const std::function<void()>& body);

  cudaStream_t stream_;
  CudaRank rank_;
  std::set<Key> seen_;
  std::map<Key, Graph> graphs_;  // null: is not to be tried again
};

}  // namespace turbomind
