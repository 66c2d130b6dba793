// Kernels that show what the instructions and barriers of kernels/cuda/device.h do; the same on a GPU and emulated.
#include <vector>

#include "kernels/cuda/hopper.h"
#include "testing/bindings/cuda_internals.h"

namespace py = pybind11;

namespace turbomind::cuda {

namespace {

// One warp: d [16, 8] = a [16, 16] b [16, 8] of 16-bit floats; a and b come through cp.async and ldmatrix.
template <bool is_bf16>
__global__ void multiply_tile(const uint16_t* a, const uint16_t* b, float* d) {
  await_previous();
  auto* shared_a = dynamic_shared<uint16_t>();
  uint16_t* shared_b = shared_a + 16 * 16;
  const int lane = threadIdx.x;
  cp_async_16(shared_a + lane * 8, a + lane * 8);
  cp_async_commit();
  cp_async_8(shared_b + lane * 4, b + lane * 4);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  uint32_t fragment_a[4];
  uint32_t fragment_b[2];
  // Matrices 0 .. 3 of a: rows 0 - 7 and 8 - 15 of columns 0 - 7, then of columns 8 - 15.
  ldmatrix_x4(fragment_a, shared_a + lane % 16 * 16 + lane / 16 * 8);
  ldmatrix_x2_transposed(fragment_b, shared_b + lane % 16 * 8);
  float sums[4] = {0, 0, 0, 0};
  if constexpr (is_bf16) {
    mma_bf16(sums, fragment_a, fragment_b);
  } else {
    mma_f16(sums, fragment_a, fragment_b);
  }
  for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

// One warp: y = x [8, 8] transposed, a lane giving and getting two neighbours of a row.
__global__ void transpose_tile(const uint32_t* x, uint32_t* y) {
  await_previous();
  y[threadIdx.x] = transpose_8x8(load_once_4(x + threadIdx.x));
}

// Four warps: d [64, kColumns] = c + a [64, 16] b [16, kColumns] of half precision, where adds, else without c; b comes
// by bulk, [2, kColumns, 8].
constexpr int kColumns = 32;
__global__ void multiply_group(const uint16_t* a, const uint16_t* b, const float* c, bool adds, float* d) {
  await_previous();
#if defined(TM_CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto* shared_b = dynamic_shared<uint16_t>();
  auto* full = reinterpret_cast<SharedBarrier*>(shared_b + 16 * kColumns);
  if (threadIdx.x == 0) {
    full->init(1);
    SharedBarrier::publish();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    full->arrive_and_expect(16 * kColumns * 2);
    bulk_copy(shared_b, b, 16 * kColumns * 2, *full);
  }
  const int lane = threadIdx.x % kWarp;
  const int first_row = threadIdx.x / kWarp * 16 + lane / 4;
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    const uint16_t* pair = a + (first_row + i % 2 * 8) * 16 + lane % 4 * 2 + i / 2 * 8;
    words[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
  const auto index = [&](int i) { return (first_row + i / 2 % 2 * 8) * kColumns + i / 4 * 8 + lane % 4 * 2 + i % 2; };
  float sums[kColumns / 2];
  for (int i = 0; i < kColumns / 2; ++i) sums[i] = c[index(i)];
  full->wait(0);
  keep_in_registers(sums);
  wgmma_fence();
  wgmma_f16<kColumns>(sums, words, k_rows<kColumns>(shared_b), adds);
  wgmma_commit();
  wgmma_wait<0>();
  keep_in_registers(sums);
  for (int i = 0; i < kColumns / 2; ++i) d[index(i)] = sums[i];
#endif
}

// shifted[i] = x[i + delta] within a warp, else x[i]; votes[w] = which lanes hold a positive x; above[i] = how many
// threads of the block do.
__global__ void talk(const float* x, int delta, float* shifted, uint32_t* votes, int32_t* above) {
  await_previous();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  shifted[i] = __shfl_down_sync(kAllLanes, x[i], delta);
  const unsigned mine = __ballot_sync(kAllLanes, x[i] > 0);
  if (threadIdx.x % kWarp == 0) votes[i / kWarp] = mine;
  above[i] = __syncthreads_count(x[i] > 0);
}

// Reverses each 64 through shared memory, the halves of a block; is wrong where they do not meet.
enum class BarrierScope : uint8_t { kNobody, kBlock, kHalf };
__global__ void reverse(const int32_t* x, int32_t* y, BarrierScope scope) {
  await_previous();
  auto* shared = dynamic_shared<int32_t>();
  const int first = blockIdx.x * blockDim.x;
  shared[threadIdx.x] = x[first + threadIdx.x];
  if (scope == BarrierScope::kBlock) __syncthreads();
  if (scope == BarrierScope::kHalf) barrier(1 + threadIdx.x / 64, 64);
  y[first + threadIdx.x] = shared[threadIdx.x ^ 63];
}

// y = x + 1, where x is what the launch before writes; wrong where it is read too early.
enum class Reads : uint8_t { kAfterWaiting, kBeforeWaiting, kWithoutWaiting };
__global__ void count_on(const int32_t* x, int32_t* y, Reads reads) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  start_next();
  const int32_t early = reads == Reads::kAfterWaiting ? 0 : *static_cast<const volatile int32_t*>(x + i);
  if (reads != Reads::kWithoutWaiting) await_previous();
  y[i] = (reads == Reads::kAfterWaiting ? x[i] : early) + 1;
}

#ifdef TM_CUDA_EMULATED
// Undefined on a GPU: thread 5 stays away from a barrier, or lane 5 from a collective; or a barrier is for more warps.
enum class Misses : uint8_t { kBlock, kWarp, kPart };
__global__ void misbehave(Misses misses) {
  await_previous();
  if (misses == Misses::kPart) {
    barrier(1, 96);
  } else if (misses == Misses::kBlock) {
    if (threadIdx.x == 5) return;
    __syncthreads();
  } else if (threadIdx.x == 5) {
    __syncthreads();
  } else {
    __syncwarp();
    __syncthreads();
  }
}
#endif

// `blocks` of `threads`, then what the kernel takes.
template <class... Parameters>
void bind_kernel(DeviceClass& device, const char* name, size_t shared_bytes, void (*kernel)(Parameters...)) {
  bind_launch<int, int, Parameters...>(
      device, name, [=](cudaStream_t stream, int blocks, int threads, Parameters... parameters) {
        launch(kernel, dim3(blocks), dim3(threads), shared_bytes, stream, parameters...);
      });
}

}  // namespace

void bind_probes(DeviceClass& device) {
  bind_kernel(device, "multiply_tile_bf16", (16 * 16 + 16 * 8) * 2, multiply_tile<true>);
  bind_kernel(device, "multiply_tile_f16", (16 * 16 + 16 * 8) * 2, multiply_tile<false>);
  bind_kernel(device, "transpose_tile", 0, transpose_tile);
  bind_kernel(device, "multiply_group", 16 * kColumns * 2 + sizeof(SharedBarrier), multiply_group);
  bind_kernel(device, "talk", 0, talk);
  bind_kernel(device, "reverse", 128 * 4, reverse);
#ifdef TM_CUDA_EMULATED
  bind_kernel(device, "misbehave", 0, misbehave);
#endif
  // x + launches, one each, in a graph.
  device.def("count_on", [](TestDevice& d, const Array<int32_t>& x, int launches, int reads) {
    CudaOperators& ops = operators_of(d);
    std::vector<Ints> values;
    for (int i = 0; i <= launches; ++i) values.emplace_back(ops, x);
    graph_seconds(ops, launches, 1, [&](int call) {
      const auto at = static_cast<size_t>(call);
      launch(count_on, dim3(static_cast<unsigned>(x.size() / 64)), dim3(64), 0, ops.stream(), values[at].data(),
             values[at + 1].data(), static_cast<Reads>(reads));
    });
    return values.back().fetch();
  });
}

}  // namespace turbomind::cuda
