// Self-checks of library attention (self_check.h): random sequences in a paged cache of one layer.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "device/cuda/self_check.h"
#include "kernels/cuda/attention/paged_attention.h"

namespace turbomind {

class CudaOperators;

class AttentionSelfCheck {
 public:
  // Sequences of (rows, keys), attended to as `like` says, with a bfloat16 cache. value_in_key: values are the part of
  // the keys that begins there; below 0: their own numbers.
  AttentionSelfCheck(CudaOperators& ops, const AttentionParams& like, const std::vector<std::pair<int, int>>& sequences,
                     int value_in_key = -1);

  // `candidate` writes to out() and returns what is there.
  SelfCheck run(const std::function<std::vector<float>()>& candidate);

  const AttentionParams& params() const { return params_; }
  const std::vector<cuda::DeviceSpan>& spans() const { return spans_; }
  const int32_t* blocks() const { return blocks_.as<int32_t>(); }
  cuda::DeviceSpans device_spans() const;
  // Copied to the device anew: kernels may round them in place.
  HeadsView queries();
  float* out() const { return out_.as<float>(); }
  std::vector<float> fetch();

 private:
  // Values are as they are, or their absolute values; what no sequence has written is NaN.
  void fill_cache(bool has_absolute_values);
  std::vector<float> native();

  CudaOperators& ops_;
  AttentionParams params_;
  int value_in_key_;
  std::vector<cuda::DeviceSpan> spans_;
  int rows_ = 0;
  int max_tokens_ = 0;
  int max_keys_ = 0;
  std::vector<int32_t> block_ids_;
  std::vector<float> keys_;    // [blocks, block_len, heads, key_dim]
  std::vector<float> values_;  // the same of value_dim, or none
  AlignedBuffer blocks_;
  AlignedBuffer spans_on_device_;
  std::vector<float> q_;
  AlignedBuffer q_on_device_;
  AlignedBuffer out_;
  AlignedBuffer pool_;
};

}  // namespace turbomind
