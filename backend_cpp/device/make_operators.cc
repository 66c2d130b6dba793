#include <optional>

#include "base/error.h"
#include "device/cpu_operators.h"
#include "device/operators.h"

namespace turbomind {

namespace {

std::optional<CudaBuild>& added_cuda() {
  static std::optional<CudaBuild> build;
  return build;
}

}  // namespace

bool add_cuda(const CudaBuild& build) {
  added_cuda() = build;
  return true;
}

const CudaBuild& cuda_build(const std::string& device) {
  if (device != "cuda") throw invalid_argument("device must be auto, cpu or cuda, got " + device);
  if (!added_cuda()) {
    throw invalid_argument("device is cuda, but this build has the CPU only; make build CUDA=1 adds it");
  }
  return *added_cuda();
}

std::vector<std::string> available_devices() {
  std::vector<std::string> names = {"cpu"};
  if (added_cuda() && added_cuda()->device_count() > 0) names.emplace_back("cuda");
  return names;
}

void expect_ranks() {
  if (added_cuda()) added_cuda()->expect_ranks();
}

std::unique_ptr<Operators> make_operators(const std::string& device, int threads) {
  if (device == "cpu") return std::make_unique<CpuOperators>(threads);
  return cuda_build(device).make();
}

}  // namespace turbomind
