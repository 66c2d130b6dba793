// How long kernels take when nothing else does.
#pragma once

#include <functional>

#include "device/cuda/operators.h"

namespace turbomind::cuda {

// Seconds of one call of `body(number)`: `calls` of them are captured as a graph, after one that is not, and the median
// of `rounds` launches of it counts.
double graph_seconds(CudaOperators& ops, int calls, int rounds, const std::function<void(int)>& body);

}  // namespace turbomind::cuda
