// GPUs as a device (device/device.h).
#include <cstdlib>
#include <string>

#include "device/cuda/operators.h"
#include "device/cuda/p2p_self_check.h"
#include "device/device.h"
#include "device/rank_group.h"

namespace turbomind {

namespace {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void require_a_gpu() {
  int count = 0;
  cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaSuccess && count == 0) found = cudaErrorNoDevice;
  if (found != cudaSuccess) {
    throw Error(ErrorCode::kUnavailable, std::string("device is cuda, but no usable NVIDIA GPU was found: ") +
                                             cudaGetErrorString(found) + cuda::advice_on(found));
  }
}

std::unique_ptr<Operators> make_cuda(int) {
  require_a_gpu();
  return std::make_unique<CudaOperators>();
}

// Rank r is GPU r of this machine.
class CudaRankGroup final : public RankGroup {
 public:
  // Throws Error when there are fewer GPUs, or no NCCL.
  explicit CudaRankGroup(int ranks) : ranks_(ranks) {
    if (const int found = device_count(); found < ranks) {
      throw invalid_argument("tp=" + std::to_string(ranks) + " needs " + std::to_string(ranks) + " GPUs, found " +
                             std::to_string(found));
    }
    group_ = std::make_shared<cuda::NcclGroup>(ranks, proven_peers(ranks));
  }

  int size() const override { return ranks_; }
  std::unique_ptr<Operators> make_operators(int rank) override {
    cuda::check(cudaSetDevice(rank), "choosing a GPU");
    return std::make_unique<CudaOperators>(CudaRank{group_, rank});
  }
  void fail() noexcept override { group_->fail(); }

 private:
  int ranks_;
  std::shared_ptr<cuda::NcclGroup> group_;
};

std::unique_ptr<RankGroup> make_cuda_group(int ranks, int) {
  require_a_gpu();
  return std::make_unique<CudaRankGroup>(ranks);
}

// While one rank waits for another inside of a sum, nothing can be loaded into its GPU, and a thread that tries holds
// what the other needs. CUDA reads this when it is first called.
void load_kernels_at_start() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

constexpr DeviceTraits kTraits{.batch_size = 256, .step_tokens = 8192, .cache_limit = ~size_t{0}};

const bool is_added = add_device({"cuda", kTraits, device_count, make_cuda, make_cuda_group, load_kernels_at_start});

}  // namespace

}  // namespace turbomind
