// Recurrent mixers on a GPU, as kernels/recurrence.h says. The spans are read when the kernels run; their number is
// that of the launch.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/recurrence.h"

namespace turbomind::cuda {

// x, y [rows, channels]; y may be x.
void causal_conv(cudaStream_t stream, const ConvParams& params, const StridedRows& x, int rows, const StridedRows& y);

void recurrence_gates(cudaStream_t stream, const GateParams& params, const StridedRows& a, const StridedRows& b,
                      int rows, float* decay, float* beta);

void recurrence(cudaStream_t stream, const RecurrenceParams& params, const HeadsView& q, const HeadsView& k,
                const HeadsView& v, float* out);

}  // namespace turbomind::cuda
