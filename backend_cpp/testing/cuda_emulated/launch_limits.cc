#include "testing/cuda_emulated/launch_limits.h"

#include <atomic>

namespace turbomind::emulated {

namespace {

constexpr unsigned kMaxBlocks = 65535;  // in y and z
constexpr unsigned kMaxBlocksX = (1u << 31) - 1;
constexpr unsigned kMaxThreads = 1024;  // of a block, and in x and y
constexpr unsigned kMaxThreadsZ = 64;

std::atomic<size_t> shared_bytes_of_block = 227 * 1024;
std::atomic<bool> only_checks = false;
thread_local bool thread_only_checks = false;

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

}  // namespace turbomind::emulated
