// Collectives of ranks that are threads of this process, in memory that all of them reach.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace turbomind {

class HostExchange {
 public:
  explicit HostExchange(int ranks) : buffers_(static_cast<size_t>(ranks)) {}

  // Every rank calls this with as many elements; each element becomes its sum over the ranks, added in their order: the
  // same bits for all of them, every time. Returns when this rank's are done. Throws Error (kInternal) after fail().
  void all_reduce(int rank, float* data, size_t count);

  // The same for data [ranks, count], of which each rank has filled its own part: it becomes the same on all.
  void all_gather(int rank, float* data, size_t count);

  // For a rank that cannot continue: what waits for it throws, and so does every later call.
  void fail() noexcept;

 private:
  // Waits until all ranks are here.
  void barrier();
  void check() const;

  std::vector<float*> buffers_;  // of each rank, during a call
  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> barriers_{0};
  std::atomic<bool> has_failed_{false};
};

}  // namespace turbomind
