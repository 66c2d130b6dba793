// Which multiprocessor computes which tiles in attention of prompts: made on the host once a step, read by the kernel.
#pragma once

#include <vector>

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/prefill/prefill_kernel.h"

namespace turbomind::cuda {

struct PrefillPlan {
  std::vector<DeviceSpan> spans;  // none empty
  int heads = 0;
  int tile_rows = 0;
  int multiprocessors = 0;

  int items() const;
  // int32 of the plan.
  size_t size() const;
};

// Writes the plan to `memory`, size() int32: long tiles first, each to who has least to do; heads of a tile, which
// share what they read, follow each other.
void fill_prefill_plan(const PrefillPlan& plan, int32_t* memory);
// That plan where it is on the device.
PrefillPlanView view_prefill_plan(const PrefillPlan& plan, const int32_t* memory);

}  // namespace turbomind::cuda
