// Latent attention by a library's kernel where there is one for the device and it has passed its self-check
// (self_check.h).
//
// The kernel's plan depends on the lengths of a step's sequences: it is made when their spans are set, and uploaded
// with them, so that a captured step finds it. What a plan is for becomes known with the first attention that the
// library can compute, before any capture.
#pragma once

#include <vector>

#include "device/operators.h"
#include "kernels/cuda/latent/latent.h"

namespace turbomind {

class CudaOperators;

class CudaLatents {
 public:
  explicit CudaLatents(CudaOperators& ops);

  // The spans of tokens of the step that follows; `padded_spans`: how many the step's shape is for, if it only decodes,
  // else their number.
  void set_spans(std::vector<cuda::DeviceSpan> spans, int padded_spans);
  // Attends as cuda::paged_attention would, for all spans set; false where it cannot.
  bool compute(const AttentionParams& params, const int32_t* blocks, const HeadsView& q, float* out);

 private:
  bool knows(const AttentionParams& params);
  void plan();

  CudaOperators& ops_;
  const cuda::LatentKernel* kernel_ = nullptr;  // null: none
  int heads_ = 0;                               // that the kernel was tried with; 0: not yet
  std::vector<cuda::DeviceSpan> spans_;
  int padded_spans_ = 0;
  std::vector<cuda::LatentPiece> pieces_;
  bool is_planned_ = false;
  Staged plan_;
};

}  // namespace turbomind
