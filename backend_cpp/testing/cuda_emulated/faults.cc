#include "testing/cuda_emulated/faults.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

namespace turbomind::emulated {

namespace {

constexpr size_t kDeviceBytes = size_t{1} << 30;

struct Fault {
  std::string name;
  int skipped = 0;
  cudaError_t error = cudaSuccess;
  bool lasts = false;
};

struct LibraryState {
  Library library = Library::kNone;
  int launches = 0;
};

std::mutex mu;
Fault fault;                                    // guarded by mu
cudaError_t lasting = cudaSuccess;              // guarded by mu
size_t memory = kDeviceBytes;                   // guarded by mu
std::map<std::string, long> calls;              // guarded by mu
std::optional<bool> is_eager;                   // guarded by mu
std::map<std::string, LibraryState> libraries;  // guarded by mu

bool exists(const char* file) {
  return file != nullptr && ::access(file, F_OK) == 0;
}

}  // namespace

cudaError_t begin_call(const char* name) {
  static const char* const lost_file = std::getenv("EMULATED_CUDA_LOST_FILE");
  static const char* const hung_file = std::getenv("EMULATED_CUDA_HUNG_FILE");
  while (exists(hung_file)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (exists(lost_file)) return cudaErrorDeviceUnavailable;
  const std::lock_guard lock(mu);
  ++calls[name];
  if (!is_eager) {
    const char* loading = std::getenv("CUDA_MODULE_LOADING");
    is_eager = loading != nullptr && std::string_view(loading) == "EAGER";
  }
  if (lasting != cudaSuccess) return lasting;
  if (fault.error == cudaSuccess || (!fault.name.empty() && fault.name != name)) return cudaSuccess;
  if (fault.skipped-- > 0) return cudaSuccess;
  const cudaError_t error = fault.error;
  if (fault.lasts) lasting = error;
  fault = {};
  return error;
}

long calls_of(const std::string& name) {
  const std::lock_guard lock(mu);
  return calls[name];
}

void count_call(const char* name) {
  const std::lock_guard lock(mu);
  ++calls[name];
}

bool loads_eagerly() {
  const std::lock_guard lock(mu);
  return is_eager.value_or(false);
}

void restart_runtime() {
  const std::lock_guard lock(mu);
  is_eager.reset();
}

void inject_fault(const std::string& name, int skipped, cudaError_t error, bool lasts) {
  const std::lock_guard lock(mu);
  fault = {name, skipped, error, lasts};
}

void set_device_memory(size_t bytes) {
  const std::lock_guard lock(mu);
  memory = bytes;
}

size_t device_memory() {
  const std::lock_guard lock(mu);
  return memory;
}

void clear_faults() {
  const std::lock_guard lock(mu);
  fault = {};
  lasting = cudaSuccess;
  memory = kDeviceBytes;
}

void set_library(const std::string& name, Library library) {
  const std::lock_guard lock(mu);
  libraries[name] = {library, 0};
}

Library library(const std::string& name) {
  const std::lock_guard lock(mu);
  return libraries[name].library;
}

void count_library_launch(const std::string& name) {
  const std::lock_guard lock(mu);
  ++libraries[name].launches;
}

int library_launches(const std::string& name) {
  const std::lock_guard lock(mu);
  return libraries[name].launches;
}

}  // namespace turbomind::emulated
