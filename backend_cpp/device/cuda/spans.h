// The spans of a step as attention reads them on a GPU: those of one row and those of several are launched apart.
//
// They are where those of the step before did as long as there is room, so that a captured step finds them; when they
// move, captured steps are forgotten.
#pragma once

#include <array>
#include <vector>

#include "device/operators.h"
#include "kernels/cuda/attention/paged_attention.h"

namespace turbomind {

class CudaOperators;

class CudaSpans {
 public:
  // Takes the memory for this many spans, which have this many blocks together.
  void reserve(CudaOperators& ops, int span_count, size_t block_count);
  // Brings them to the device, as Operators::set_spans says. `is_padded`: spans that all have one row are filled up
  // with empty ones to a number that decoding steps are captured for.
  void set(CudaOperators& ops, const std::vector<AttentionSpan>& spans, int block_len, bool is_padded);
  // Empty ones of that shape.
  void set_empty(CudaOperators& ops, const DecodingShape& shape);

  // Those of one row, then the others. Either may have none.
  std::array<cuda::DeviceSpans, 2> groups() const { return {single_.view, several_.view}; }
  // The same without the empty ones that fill up.
  std::vector<cuda::DeviceSpan> filled() const;
  // The cache blocks of all.
  const int32_t* blocks() const { return blocks_.device<int32_t>(); }
  // How many there are with those that fill up, and the bound of their contexts.
  int padded_count() const { return single_.view.span_count + several_.view.span_count; }
  int max_context() const { return single_.view.max_context; }

 private:
  struct Group {
    std::vector<cuda::DeviceSpan> filled;
    Staged spans;
    cuda::DeviceSpans view;
  };
  // Brings a group in a shape for `span_count` spans; those that it does not have are empty.
  void upload(CudaOperators& ops, Group& group, int span_count, int max_tokens, int max_context);

  Group single_;
  Group several_;
  Staged blocks_;  // int32
};

}  // namespace turbomind
