// All-reduce and all-gather over the GPUs of this process, by NCCL.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cuda/comm/nccl_api.h"
#include "kernels/cuda/device_memory.h"

namespace turbomind::cuda {

// Rank r is GPU r. A rank calls from the thread whose current device that is.
class NcclGroup {
 public:
  // Throws Error when NCCL is missing, or does not connect the GPUs.
  explicit NcclGroup(int ranks);
  // Every graph that a call was captured in must be gone.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Only launches: each of `count` elements becomes its sum over the ranks, the same bits on all of them. Throws Error
  // (kInternal) after fail().
  void all_reduce(int rank, float* x, size_t count, cudaStream_t stream);
  // The same for x [ranks, count], of which each rank has filled its own part: it becomes the same on all.
  void all_gather(int rank, float* x, size_t count, cudaStream_t stream);
  // For a rank that cannot continue: GPUs that wait for it stop waiting, with nothing of use in their memory. From any
  // thread. NCCL itself ends when all graphs are gone that its calls were captured in, at last before this does.
  void fail() noexcept;
  // Throws Error (kInternal) after fail(); to be called before a result is used.
  void check() const;

 private:
  struct Rank {
    std::timed_mutex mu;       // held while `comm` is used
    ncclComm* comm = nullptr;  // guarded by mu; null when freed
  };

  // Launches what call(comm) does. `what` is for errors.
  template <class Call>
  void launch(int rank, const char* what, Call&& call);

  const NcclApi& api_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<bool> has_failed_{false};
  std::vector<std::thread> aborts_;  // of fail()
};

}  // namespace turbomind::cuda
