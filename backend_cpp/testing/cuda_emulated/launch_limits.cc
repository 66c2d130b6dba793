#include "testing/cuda_emulated/launch_limits.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "testing/cuda_emulated/deferred.h"
#include "testing/cuda_emulated/runtime.h"

namespace turbomind::emulated {

namespace {

constexpr unsigned kMaxBlocks = 65535;  // in y and z
constexpr unsigned kMaxBlocksX = (1u << 31) - 1;
constexpr unsigned kMaxThreads = 1024;  // of a block, and in x and y
constexpr unsigned kMaxThreadsZ = 64;

std::atomic<size_t> shared_bytes_of_block = 227 * 1024;
std::atomic<bool> only_checks = false;
thread_local bool thread_only_checks = false;

constexpr uintptr_t kFirstAddress = 1 << 16;  // below are small numbers
constexpr uintptr_t kEndOfAddresses = uintptr_t{1} << 47;

bool is_mapped(uintptr_t address) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char is_resident = 0;
  return mincore(reinterpret_cast<void*>(address / page * page), 1, &is_resident) == 0;
}

bool is_host_memory(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (address < kFirstAddress || address >= kEndOfAddresses) return false;
  if (is_device_memory(memory) || is_staging(memory) || !is_mapped(address)) return false;
  Dl_info program;  // whose constants and functions are the device's too
  return dladdr(memory, &program) == 0;
}

}  // namespace

cudaError_t check_launch(dim3 grid, dim3 block, size_t shared_bytes) {
  const bool has_blocks = grid.x > 0 && grid.y > 0 && grid.z > 0;
  const bool is_small_grid = grid.x <= kMaxBlocksX && grid.y <= kMaxBlocks && grid.z <= kMaxBlocks;
  const size_t threads = size_t{block.x} * block.y * block.z;
  const bool is_block = threads > 0 && threads <= kMaxThreads && block.z <= kMaxThreadsZ;
  if (!has_blocks || !is_small_grid || !is_block) return cudaErrorInvalidConfiguration;
  return shared_bytes <= shared_memory() ? cudaSuccess : cudaErrorInvalidValue;
}

void set_shared_memory(size_t bytes) {
  shared_bytes_of_block = bytes;
}

size_t shared_memory() {
  return shared_bytes_of_block;
}

void set_only_checks_launches(bool only) {
  only_checks = only;
}

bool only_checks_launches() {
  return only_checks || thread_only_checks;
}

OnlyChecking::OnlyChecking() {
  thread_only_checks = true;
}

OnlyChecking::~OnlyChecking() {
  thread_only_checks = false;
}

void reject_host_memory(const void* words, size_t count, int number) {
  const auto* argument = static_cast<const void* const*>(words);
  for (size_t i = 0; i < count; ++i) {
    if (!is_host_memory(argument[i])) continue;
    throw internal_error("launching a kernel: argument " + std::to_string(number) +
                         " has a pointer to the host's memory, " + std::to_string(i * sizeof(void*)) +
                         " bytes from its beginning");
  }
}

}  // namespace turbomind::emulated
