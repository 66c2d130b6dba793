// Overlapping kernels of a graph, as they may run on a GPU (kernels/cuda/device.h): before a kernel runs, a block of
// each of the next few has run up to where it awaits the launches before it. So what it read or wrote before that is
// what such a kernel would find, and do, too early.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "testing/cuda_emulated/block.h"

namespace turbomind::emulated {

// A launch, or, where there is none, something else that is given to a stream.
struct Call {
  std::function<void()> work;
  std::optional<Launch> launch;
};

void run_calls(const std::vector<Call>& calls);

}  // namespace turbomind::emulated
