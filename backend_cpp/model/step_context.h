// What the parts of the decoder share during a step.
#pragma once

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/linear.h"

namespace turbomind {

struct StepContext {
  ThreadPool& pool;
  LinearScratch& scratch;
  int rows;
};

// Room for activations, float32 [rows, width].
inline AlignedBuffer float_buffer(int rows, int width) {
  return AlignedBuffer(static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float));
}

}  // namespace turbomind
