#include <optional>

#include "base/error.h"
#include "device/cpu_operators.h"
#include "device/cpu_rank_group.h"

namespace turbomind {

namespace {

std::optional<CudaBuild>& cuda_build() {
  static std::optional<CudaBuild> build;
  return build;
}

const CudaBuild& cuda_named(const std::string& device) {
  if (device != "cuda") throw invalid_argument("device must be auto, cpu or cuda, got " + device);
  if (!cuda_build()) {
    throw invalid_argument("device is cuda, but this build has the CPU only; make build CUDA=1 adds it");
  }
  return *cuda_build();
}

}  // namespace

bool add_cuda(const CudaBuild& build) {
  cuda_build() = build;
  return true;
}

std::vector<std::string> available_devices() {
  std::vector<std::string> names = {"cpu"};
  if (cuda_build() && cuda_build()->device_count() > 0) names.emplace_back("cuda");
  return names;
}

std::unique_ptr<Operators> make_operators(const std::string& device, int threads) {
  if (device == "cpu") return std::make_unique<CpuOperators>(threads);
  return cuda_named(device).make();
}

std::unique_ptr<RankGroup> make_rank_group(const std::string& device, int ranks, int threads) {
  if (device == "cpu") return std::make_unique<CpuRankGroup>(ranks, threads);
  return cuda_named(device).make_group(ranks);
}

}  // namespace turbomind
