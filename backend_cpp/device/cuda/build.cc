// GPUs as a device (device/device.h).
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/cuda/operators.h"
#include "device/cuda/self_check.h"
#include "device/device.h"

namespace turbomind {

namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Text of a runtime error, as of a driver that is too old. Without a driver its version is 0.
std::string reason_of(cudaError_t error, int& driver) {
  int built_with = 0;
  driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&built_with) != cudaSuccess) built_with = 0;
  const std::string there =
      driver > 0 ? "the driver is for CUDA " + version_text(driver) : std::string("there is no driver");
  return std::string(cudaGetErrorString(error)) + " (" + there + ", this build for CUDA " + version_text(built_with) +
         ")" + cuda::advice_on(error);
}

// Where GPUs cannot be used though there is a driver, stderr says why.
int device_count() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaSuccess) return count;
  int driver = 0;
  const std::string reason = reason_of(found, driver);
  if (found != cudaErrorNoDevice && driver > 0) {
    std::fprintf(stderr, "turbomind: GPUs are not used: %s\n", reason.c_str());
  }
  return 0;
}

void require_a_gpu() {
  int count = 0;
  cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaSuccess && count == 0) found = cudaErrorNoDevice;
  if (found != cudaSuccess) {
    int driver = 0;
    throw Error(ErrorCode::kUnavailable,
                "device is cuda, but no usable NVIDIA GPU was found: " + reason_of(found, driver));
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
    group_ = std::make_shared<cuda::NcclGroup>(ranks);
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
