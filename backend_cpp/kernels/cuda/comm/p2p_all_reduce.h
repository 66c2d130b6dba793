// One-shot all-reduce and all-gather over P2P: every GPU reads the others' memory, in one launch.
#pragma once

#include <vector>

#include "kernels/cuda/device_memory.h"

namespace turbomind::cuda {

// All ranks, for a rank's launches. Pointers are of that rank's GPU's memory where nothing else is said.
struct PeerView {
  static constexpr int kMaxRanks = 8;

  float* parts[kMaxRanks];        // in each rank's memory: what it brings, [2, kMaxCount]
  uint32_t* arrivals[kMaxRanks];  // in each rank's memory: calls that a block of another has come to, [blocks, ranks]
  uint32_t* calls;                // that a block of this rank has ended, [blocks]
  const uint32_t* is_stopped;     // pinned memory of the host
  int ranks;
  int rank;
};

// Rank r is GPU r, and calls with it as the current device. All ranks make the same calls in the same order.
class P2pAllReduce {
 public:
  static constexpr size_t kMaxCount = size_t{128} << 10;  // of a rank's floats: 512 KiB

  // Whether this many GPUs reach each other's memory.
  static bool is_possible(int ranks);

  // For ranks that reach each other. Throws Error where one lacks 1 MiB of memory.
  explicit P2pAllReduce(int ranks);
  P2pAllReduce(const P2pAllReduce&) = delete;
  P2pAllReduce& operator=(const P2pAllReduce&) = delete;

  static bool takes(size_t count) { return count > 0 && count <= kMaxCount; }
  // Only launches; may be captured in a graph. Each of `count` elements becomes its sum over the ranks, added in their
  // order: the same bits on all of them, every time.
  void all_reduce(int rank, float* x, size_t count, cudaStream_t stream);
  // The same for x [ranks, count], of which each rank has filled its own part: it becomes the same on all.
  void all_gather(int rank, float* x, size_t count, cudaStream_t stream);
  // Aborts: waits for another rank end, with nothing of use in memory, and so does every later call. From any thread.
  void stop() noexcept;

 private:
  std::vector<AlignedBuffer> memory_;  // of each rank
  AlignedBuffer is_stopped_;           // uint32, pinned
  std::vector<PeerView> views_;
};

}  // namespace turbomind::cuda
