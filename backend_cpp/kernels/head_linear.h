// Per-head linear layers: y[h] = x[h] W_h^T.
//
// W_h are rows [h out, (h + 1) out) of a float32 or bfloat16 weight without bias, where in and out are the head_dim of
// x and y. Each element is summed as `linear` does, independent of rows and threads. x and y do not overlap.
#pragma once

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/linear.h"
#include "kernels/operation.h"

namespace turbomind {

struct HeadLinear {
  static constexpr std::string_view kName = "head_linear";

  LinearWeight weight;
  HeadsView x;
  HeadsView y;

  void run(ThreadPool& pool) const;
};

}  // namespace turbomind
