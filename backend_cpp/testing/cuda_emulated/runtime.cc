#include "testing/cuda_emulated/runtime.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "testing/cuda_emulated/deferred.h"
#include "testing/cuda_emulated/faults.h"
#include "testing/cuda_emulated/launch_limits.h"
#include "testing/cuda_emulated/overlap.h"

using turbomind::emulated::begin_call;

using turbomind::emulated::Call;

struct CUgraph_st {
  std::vector<Call> calls;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point recorded;
};
struct CUgraphExec_st {
  std::vector<Call> calls;
};

namespace {

constexpr size_t kAlignment = 256;  // of what cudaMalloc returns

constexpr int kDevices = 4;

struct Allocation {
  size_t bytes;
  int device;
};
std::mutex mu;
std::map<void*, Allocation> allocated;  // guarded by mu
std::array<size_t, kDevices> used{};    // guarded by mu; bytes of each device

// Memory of any kind starts as NaN. Not rounded up, so that AddressSanitizer sees what is after.
cudaError_t allocate(void** memory, size_t bytes) {
  if (posix_memalign(memory, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xFF, bytes);
  return cudaSuccess;
}

thread_local CUgraph_st* captured = nullptr;
thread_local int current_device = 0;

void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void fill(void* memory, int value, size_t bytes) {
  if (bytes > 0) std::memset(memory, value, bytes);
}

cudaError_t outside_of_capture() {
  return captured == nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

bool turbomind::emulated::is_device_memory(const void* memory) {
  const std::lock_guard lock(mu);
  const auto after = allocated.upper_bound(const_cast<void*>(memory));
  if (after == allocated.begin()) return false;
  const auto& [begin, allocation] = *std::prev(after);
  return memory <= static_cast<const std::byte*>(begin) + allocation.bytes;  // one past its end, too
}

bool turbomind::emulated::is_capturing() {
  return captured != nullptr;
}

void turbomind::emulated::submit(std::function<void()> work) {
  if (captured != nullptr) {
    captured->calls.push_back({std::move(work), {}});
  } else if (turbomind::emulated::only_checks_launches()) {
    return;
  } else if (turbomind::emulated::is_deferring()) {
    keep_work(std::move(work));
  } else {
    work();
  }
}

void turbomind::emulated::submit(Launch launch) {
  if (captured != nullptr) {
    captured->calls.push_back({{}, std::move(launch)});
  } else if (turbomind::emulated::only_checks_launches()) {
    return;
  } else if (turbomind::emulated::is_deferring()) {
    keep_work([launch = std::move(launch)] { run_grid(launch); });
  } else {
    run_grid(launch);
  }
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t error = begin_call("cudaMalloc")) return error;
  if (captured != nullptr) return cudaErrorInvalidValue;
  const std::lock_guard lock(mu);
  const size_t limit = turbomind::emulated::device_memory();
  size_t& used_bytes = used[static_cast<size_t>(current_device)];
  if (used_bytes > limit || bytes > limit - used_bytes) return cudaErrorMemoryAllocation;
  if (const cudaError_t error = allocate(memory, bytes)) return error;
  allocated[*memory] = {bytes, current_device};
  used_bytes += bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  turbomind::emulated::finish_work();
  {
    const std::lock_guard lock(mu);
    const auto known = allocated.find(memory);
    if (known == allocated.end()) return cudaErrorInvalidValue;
    used[static_cast<size_t>(known->second.device)] -= known->second.bytes;
    allocated.erase(known);
  }
  std::free(memory);  // even where the call reports a fault, so that tests leak nothing
  return begin_call("cudaFree");
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  if (const cudaError_t error = begin_call("cudaMallocHost")) return error;
  if (captured != nullptr) return cudaErrorInvalidValue;
  const cudaError_t error = allocate(memory, bytes);
  if (error == cudaSuccess) turbomind::emulated::record_staging(*memory, bytes);
  return error;
}

cudaError_t cudaFreeHost(void* memory) {
  turbomind::emulated::finish_work();
  turbomind::emulated::erase_staging(memory);
  std::free(memory);
  return begin_call("cudaFreeHost");
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (const cudaError_t error = begin_call("cudaMemcpyAsync")) return error;
  if (kind == cudaMemcpyHostToDevice) turbomind::emulated::count_call("copy to the device");
  using turbomind::emulated::is_staging;
  const bool is_deferred = captured == nullptr && turbomind::emulated::is_deferring();
  if (is_deferred && kind == cudaMemcpyHostToDevice && !is_staging(from)) {
    const auto* first = static_cast<const std::byte*>(from);
    const auto content = std::make_shared<std::vector<std::byte>>(first, first + bytes);
    turbomind::emulated::submit([=] { copy(to, content->data(), bytes); });
    return cudaSuccess;
  }
  if (is_deferred && kind == cudaMemcpyHostToDevice) turbomind::emulated::record_read(from, bytes);
  turbomind::emulated::submit([=] {
    copy(to, from, bytes);
    if (kind == cudaMemcpyDeviceToHost) turbomind::emulated::record_written(to, bytes);
  });
  if (is_deferred && kind == cudaMemcpyDeviceToHost && !is_staging(to)) turbomind::emulated::finish_work();
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  if (const cudaError_t error = begin_call("cudaMemsetAsync")) return error;
  turbomind::emulated::submit([=] { fill(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const cudaError_t error = begin_call("cudaMemGetInfo")) return error;
  const std::lock_guard lock(mu);
  *total_bytes = turbomind::emulated::device_memory();
  *free_bytes = *total_bytes - std::min(used[static_cast<size_t>(current_device)], *total_bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t error = begin_call("cudaStreamCreateWithFlags")) return error;
  *stream = nullptr;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (const cudaError_t error = begin_call("cudaStreamSynchronize")) return error;
  if (captured == nullptr) turbomind::emulated::finish_work();
  return outside_of_capture();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (const cudaError_t error = begin_call("cudaStreamBeginCapture")) return error;
  if (captured != nullptr) return cudaErrorInvalidValue;
  captured = new CUgraph_st;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = std::exchange(captured, nullptr);
  if (const cudaError_t error = begin_call("cudaStreamEndCapture")) {
    delete std::exchange(*graph, nullptr);
    return error;
  }
  return *graph != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = begin_call("cudaGraphInstantiate")) return error;
  *exec = new CUgraphExec_st{graph->calls};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  if (const cudaError_t error = begin_call("cudaGraphUpload")) return error;
  return outside_of_capture();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  if (const cudaError_t error = begin_call("cudaGraphLaunch")) return error;
  if (turbomind::emulated::is_deferring()) {
    turbomind::emulated::keep_work([calls = exec->calls] { turbomind::emulated::run_calls(calls); });
  } else {
    turbomind::emulated::run_calls(exec->calls);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t error = begin_call("cudaEventCreateWithFlags")) return error;
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (const cudaError_t error = begin_call("cudaEventRecord")) return error;
  event->recorded = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (const cudaError_t error = begin_call("cudaEventElapsedTime")) return error;
  *milliseconds = std::chrono::duration<float, std::milli>(end->recorded - begin->recorded).count();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
  if (const cudaError_t error = begin_call("cudaEventSynchronize")) return error;
  turbomind::emulated::finish_work();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = begin_call("cudaGetDeviceCount")) return error;
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12040;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = begin_call("cudaSetDevice")) return error;
  if (device < 0 || device >= kDevices) return cudaErrorInvalidValue;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (const cudaError_t error = begin_call("cudaGetDevice")) return error;
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorDeviceUnavailable:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
  }
  return "unknown error";
}
