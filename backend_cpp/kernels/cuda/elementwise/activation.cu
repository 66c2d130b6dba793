#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/activated.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;

struct Activate {
  Activation activation;
  __device__ float operator()(float gate, float up) const { return activated(activation, gate, up); }
};

struct Xielu {
  XieluFactors factors;
  __device__ float operator()(float x, float) const {
    const float high = at_least(x, 0.0f);
    const float low = at_most(x, 0.0f);
    return factors.positive * high * high + factors.negative * (expm1f(low) - low) + factors.linear * x;
  }
};

struct Scale {
  float scale;
  __device__ float operator()(float x, float) const { return x * scale; }
};

// tanh(v) = 1 - 2 / (exp(2 v) + 1)
struct Cap {
  float slope;
  float softcap;
  __device__ float operator()(float x, float) const { return softcap - 2.0f * softcap / (expf(x * slope) + 1.0f); }
};

struct AddScaled {
  float scale;
  __device__ float operator()(float x, float y) const { return y + scale * x; }
};

struct Sigmoid {
  __device__ float operator()(float x, float) const { return 1.0f / (1.0f + expf(-x)); }
};

struct Clamp {
  float limit;
  __device__ float operator()(float x, float) const { return at_least(at_most(x, limit), -limit); }
};

// An operand [rows, size] whose rows begin `stride` floats apart; first null: all ones.
struct Operand {
  const float* first;
  size_t stride;
};

// y[row, i] = function(a[row, i], b[row, i]); a thread takes one Vector (float, or float4 where everything allows it).
template <class Vector, class Function>
__global__ void __launch_bounds__(kThreads)
    map_kernel(Function function, Operand a, Operand b, int vectors, size_t count, float* y) {
  await_previous();
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const size_t row = index / vectors;
  const size_t at = index % vectors * kWidth;
  const Vector left = *reinterpret_cast<const Vector*>(a.first + row * a.stride + at);
  Vector right;
  auto* others = reinterpret_cast<float*>(&right);
  if (b.first != nullptr) {
    right = *reinterpret_cast<const Vector*>(b.first + row * b.stride + at);
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) others[j] = 1.0f;
  }
  Vector out;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    reinterpret_cast<float*>(&out)[j] = function(reinterpret_cast<const float*>(&left)[j], others[j]);
  }
  *reinterpret_cast<Vector*>(y + index * kWidth) = out;
}

bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(float4) == 0;
}

template <class Function>
void map(cudaStream_t stream, const Function& function, Operand a, Operand b, int rows, int size, float* y) {
  const bool is_vector = size % 4 == 0 && is_aligned(a.first) && is_aligned(b.first) && is_aligned(y);
  const int vectors = is_vector ? size / 4 : size;
  const size_t count = static_cast<size_t>(rows) * vectors;
  if (count == 0) return;
  launch(is_vector ? map_kernel<float4, Function> : map_kernel<float, Function>,
         dim3(static_cast<unsigned>(divide_up(count, kThreads))), dim3(kThreads), 0, stream, function, a, b, vectors,
         count, y);
}

}  // namespace

void activate_gated(cudaStream_t stream, Activation activation, const float* gate_up, int rows, int size, float* y) {
  const auto width = static_cast<size_t>(size);
  map(stream, Activate{activation}, {gate_up, 2 * width}, {gate_up + width, 2 * width}, rows, size, y);
}

void activate(cudaStream_t stream, Activation activation, const float* x, int rows, int size, float* y) {
  map(stream, Activate{activation}, {x, static_cast<size_t>(size)}, {nullptr, 0}, rows, size, y);
}

void xielu(cudaStream_t stream, const XieluFactors& factors, const float* x, int rows, int size, float* y) {
  map(stream, Xielu{factors}, {x, static_cast<size_t>(size)}, {nullptr, 0}, rows, size, y);
}

void scale_and_cap(cudaStream_t stream, float scale, float softcap, int rows, int size, float* x) {
  const Operand own{x, static_cast<size_t>(size)};
  if (softcap == 0) return map(stream, Scale{scale}, own, {nullptr, 0}, rows, size, x);
  map(stream, Cap{2 * scale / softcap, softcap}, own, {nullptr, 0}, rows, size, x);
}

void add_scaled(cudaStream_t stream, float scale, const float* x, int rows, int size, float* y) {
  const auto stride = static_cast<size_t>(size);
  map(stream, AddScaled{scale}, {x, stride}, {y, stride}, rows, size, y);
}

void sigmoid(cudaStream_t stream, int count, float* x) {
  map(stream, Sigmoid{}, {x, static_cast<size_t>(count)}, {nullptr, 0}, 1, count, x);
}

void clamp(cudaStream_t stream, float limit, int rows, int size, float* x) {
  map(stream, Clamp{limit}, {x, static_cast<size_t>(size)}, {nullptr, 0}, rows, size, x);
}

}  // namespace turbomind::cuda
