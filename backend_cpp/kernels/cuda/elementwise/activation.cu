#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/activated.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;

struct Activate {
  Activation activation;
  __device__ float operator()(float gate, float up) const { return activated(activation, gate, up); }
};

struct XieluOf {
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

struct Clamp {
  float limit;
  __device__ float operator()(float x, float) const { return at_least(at_most(x, limit), -limit); }
};

// y = function(a, b), number by number, or, where `b` is {}, function(a, 1). A thread takes one Vector (float, or
// float4 where everything allows it), of which a head has this many.
template <class Vector, class Function>
__global__ void __launch_bounds__(kThreads)
    map_kernel(Function function, HeadsView a, HeadsView b, HeadsView y, int vectors, size_t count) {
  await_previous();
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const auto vector = static_cast<unsigned>(index / vectors);
  const unsigned row = vector / y.heads;
  const int head = static_cast<int>(vector % y.heads);
  const size_t at = index % vectors * kWidth;
  const Vector left = *reinterpret_cast<const Vector*>(a.head(row, head) + at);
  Vector right;
  auto* others = reinterpret_cast<float*>(&right);
  if (b.first != nullptr) {
    right = *reinterpret_cast<const Vector*>(b.head(row, head) + at);
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) others[j] = 1.0f;
  }
  Vector out;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    reinterpret_cast<float*>(&out)[j] = function(reinterpret_cast<const float*>(&left)[j], others[j]);
  }
  *reinterpret_cast<Vector*>(y.head(row, head) + at) = out;
}

bool has_vectors(const HeadsView& x) {
  return reinterpret_cast<uintptr_t>(x.first) % sizeof(float4) == 0 && x.row_stride % 4 == 0 && x.head_stride % 4 == 0;
}

template <class Function>
void map(cudaStream_t stream, const Function& function, const HeadsView& a, const HeadsView& b, const HeadsView& y) {
  const bool is_vector = y.head_dim % 4 == 0 && has_vectors(a) && has_vectors(b) && has_vectors(y);
  const int vectors = is_vector ? y.head_dim / 4 : y.head_dim;
  const size_t count = static_cast<size_t>(y.rows) * y.heads * vectors;
  if (count == 0) return;
  launch(is_vector ? map_kernel<float4, Function> : map_kernel<float, Function>,
         dim3(static_cast<unsigned>(divide_up(count, kThreads))), dim3(kThreads), 0, stream, function, a, b, y, vectors,
         count);
}

}  // namespace

void activate(cudaStream_t stream, Activation activation, const HeadsView& gate, const HeadsView& up,
              const HeadsView& y) {
  map(stream, Activate{activation}, gate, up, y);
}

void apply(cudaStream_t stream, const Pointwise& function, const HeadsView& x) {
  using Kind = Pointwise::Kind;
  switch (function.kind) {
    case Kind::kScale:
      return map(stream, Scale{function.scale}, x, {}, x);
    case Kind::kScaleRows:
      return rope(stream, {}, x, function.factors);
    case Kind::kCap:
      return map(stream, Cap{2 * function.scale / function.limit, function.limit}, x, {}, x);
    case Kind::kClamp:
      return map(stream, Clamp{function.limit}, x, {}, x);
    case Kind::kSigmoid:
      return map(stream, Activate{Activation::kSigmoid}, x, {}, x);
  }
}

void add_scaled(cudaStream_t stream, float scale, const float* x, int rows, int size, float* y) {
  const HeadsView sums = rows_view(y, rows, size);
  map(stream, AddScaled{scale}, rows_view(x, rows, size), sums, sums);
}

}  // namespace turbomind::cuda

void turbomind::Xielu::run(CudaStream stream) const {
  cuda::map(stream, cuda::XieluOf{factors}, rows_view(x, rows, size), {}, rows_view(y, rows, size));
}
