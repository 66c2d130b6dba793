// Attention of prompts by a library's kernel where there is one for the device and it has passed its self-check
// (self_check.h).
//
// As with latents, the plan of a step is made when its spans are set, and uploaded with them; what it is for becomes
// known with the first attention that the library can compute.
#pragma once

#include <vector>

#include "device/operators.h"
#include "kernels/cuda/prefill/prefill.h"

namespace turbomind {

class CudaOperators;

class CudaPrefill {
 public:
  explicit CudaPrefill(CudaOperators& ops);

  // The spans of tokens of the step that follows. Those of several rows are the library's, if they have many.
  void set_spans(const std::vector<cuda::DeviceSpan>& spans);
  // Whether the kernel computes this, and may: the first time that there is one for such heads it is tried.
  bool knows(const AttentionParams& params);
  // Records that cuda::rope_and_write has rounded these queries.
  void set_rounded(const HeadsView& q) { rounded_ = q.first; }
  // Attends as cuda::paged_attention would, for `spans`, all of several rows; false where it cannot. Queries are
  // rounded where they are.
  bool compute(const AttentionParams& params, const cuda::DeviceSpans& spans, const HeadsView& q, const TypedRows& out);

 private:
  void plan();

  CudaOperators& ops_;
  bool may_be_used_;
  const cuda::PrefillKernel* kernel_ = nullptr;  // null: none yet
  int heads_ = 0;                                // that the kernel was tried with
  cuda::PrefillPlan plan_;                       // without spans: nothing for the library
  int max_keys_ = 0;                             // of a span of plan_
  bool is_planned_ = false;
  Staged on_device_;
  const float* rounded_ = nullptr;  // queries of the next compute
};

}  // namespace turbomind
