// CUDA, or an emulation of it on the CPU: the one header that everything in kernels/cuda includes for it.
//
// The .cu files compile three ways:
//   nvcc                                   for GPUs (CMake option TURBOMIND_CUDA)
//   a C++ compiler and the CUDA toolkit    host code that calls operators; sees no device functions
//   a C++ compiler and TM_CUDA_EMULATED    for the tests, without a GPU; testing/cuda_emulated/ is the toolkit
// so kernels keep to what all three know:
//   - `launch(kernel, grid, block, shared_bytes, stream, arguments...)` instead of <<<>>>; blocks are whole warps;
//   - `dynamic_shared<T>()` instead of extern __shared__; at the start of a block it holds NaN in the emulation;
//   - static `__shared__` arrays without initialiser; no __constant__ that the host writes;
//   - warp collectives name all 32 lanes; no cooperative groups;
//   - no block waits for another;
//   - PTX only in kernels/cuda/ptx.h (mma, cp.async, lop3) and hopper.h, which state the fragment layouts;
//   - functions of the emulation are in testing/cuda_emulated/{kernel_language,types}.h: add what is missing there.
//
// Operators are free functions in turbomind::cuda, one header a group, named as on the CPU (kernels/*.h) with the same
// structs, whose pointers are device pointers, and `cudaStream_t stream` for `ThreadPool& pool`. They only launch: no
// allocation, no synchronisation, so that a step can be captured in a graph; what varies from step to step within one
// captured shape is read from device memory. Activations are float32.
//
// Kernels overlap ("programmatic dependent launch" in NVIDIA's manuals): from compute capability 9.0 on `launch` lets a
// kernel's blocks start as soon as all blocks of the kernel before it, if that is one of ours, have started, so that
// nothing stands still between two of a step's many small kernels. Therefore
//   - every thread of every kernel calls `await_previous()`, as a rule first of all. It returns when the launches
//     before have ended and what they wrote is seen: all of them, for the kernel before has waited too;
//   - before that a kernel touches no memory of a step: it may read weights, which only loading writes, and its own
//     shared memory. `start_next()`, which await_previous does as well, is for kernels that have such reads;
//   - what an earlier kernel writes is read by plain loads: __ldg, which the compiler may move, is for weights.
// Copies, NCCL and the kernels of libraries are launched without this: they start when everything
// before has ended, and a kernel of ours after them when they have. Graphs keep all of it. tools/kernel_resources
// lists what machine code reads before it waits; the emulation refuses kernels that do not wait, and in graphs runs
// blocks too early, as a GPU may.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/kernel_choice.h"
#include "kernels/cuda/ptx.h"

namespace turbomind::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Advice for an error of the runtime; may be empty.
inline const char* advice_on(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "; install a newer NVIDIA driver, or build with an older CUDA toolkit";
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no code for this GPU: it needs compute capability 8.0 or later, and a build for it "
             "(CMAKE_CUDA_ARCHITECTURES=native)";
    default:
      return "";
  }
}

// Throws what a call of the runtime reports. `what` says what was tried.
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw internal_error(std::string(what) + ": CUDA: " + cudaGetErrorString(error) + advice_on(error));
}

template <class Integer>
__host__ __device__ constexpr Integer divide_up(Integer a, std::type_identity_t<Integer> b) {
  return (a + b - 1) / b;
}

// A grid with rows in x: there may be 2^31 - 1 of them, in y and z 65,535.
inline dim3 rows_and(int rows, int others) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>(others), 1};
}

// Whether the environment lets kernels overlap (LMDEPLOY_CUDA_KERNELS).
inline bool may_overlap() {
  static const bool may = [] {
    const auto requested = requested_kernels("turbomind", "overlap");
    return !requested || *requested != KernelSource::kOff;
  }();
  return may;
}

#ifdef TM_CUDA_EMULATED

// Of a block, in bytes.
inline size_t max_shared_memory() {
  return emulated::shared_memory();
}

inline int multiprocessor_count() {
  return 4;  // few, so that small tests fill them
}

// 10 major + minor.
inline int compute_capability() {
  return 90;
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulated::dynamic_shared_memory());
}

// While there is one, nobody looks at what the thread's launches compute.
using WarmUp = emulated::OnlyChecking;

// Pinned memory of the host that the thread's next launch reads: it must not change until then.
inline void next_launch_reads(const void* memory, size_t bytes) {
  emulated::record_read(memory, bytes);
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
            Arguments&&... arguments) {
  check(emulated::begin_call("cudaLaunchKernel"), "launching a kernel");
  check(emulated::check_launch(grid, block, shared_bytes), "launching a kernel");
  if (emulated::only_checks_launches()) return;
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  std::apply(emulated::check_arguments<Parameters...>, values);
  emulated::submit({grid, block, shared_bytes, [=] { std::apply(kernel, values); }, may_overlap()});
}

#else

inline void next_launch_reads(const void*, size_t) {}

struct WarmUp {
  WarmUp() {}  // not trivial: it is not unused
};

// An attribute of the current device.
template <cudaDeviceAttr kAttribute>
int device_attribute() {
  thread_local int known_device = -1;
  thread_local int value = 0;
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  if (device != known_device) {
    check(cudaDeviceGetAttribute(&value, kAttribute, device), "asking what the device has");
    known_device = device;
  }
  return value;
}

inline int multiprocessor_count() {
  return device_attribute<cudaDevAttrMultiProcessorCount>();
}

// 10 major + minor.
inline int compute_capability() {
  return 10 * device_attribute<cudaDevAttrComputeCapabilityMajor>() +
         device_attribute<cudaDevAttrComputeCapabilityMinor>();
}

inline size_t max_shared_memory() {
  return static_cast<size_t>(device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>());
}

// Whether kernels on the current device wait for the launch before them: their code, of which `function` is an example,
// was compiled for 9.0 or later (of a build that knows no such device the driver makes code that does not wait), and
// graphs keep launches that overlap, which they do since CUDA 12.3.
inline bool kernels_wait(const void* function) {
  constexpr int kGraphsSince = 12030;
  thread_local int known_device = -1;
  thread_local bool wait = false;
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  if (device != known_device) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, function), "asking what a kernel was compiled for");
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "asking for the driver's version");
    wait = attributes.ptxVersion >= 90 && std::min(driver, CUDART_VERSION) >= kGraphsSince;
    known_device = device;
  }
  return wait;
}

#ifdef __CUDACC__
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char tm_dynamic_shared[];
  return reinterpret_cast<T*>(tm_dynamic_shared);
}
#endif

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  const auto* function = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > kWithoutAsking) {
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          "reserving shared memory for a kernel");
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = may_overlap() && kernels_wait(function) ? 1 : 0;
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  std::apply(
      [&](auto&... arg) {
        void* addresses[] = {static_cast<void*>(const_cast<std::remove_cvref_t<decltype(arg)>*>(&arg))..., nullptr};
        check(cudaLaunchKernelExC(&config, function, addresses), "launching a kernel");
      },
      values);
}

#endif

}  // namespace turbomind::cuda
