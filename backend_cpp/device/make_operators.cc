#include "base/error.h"
#include "device/cpu_operators.h"

namespace turbomind {

std::unique_ptr<Operators> make_operators(const std::string& device, int threads) {
  if (device == "cpu") return std::make_unique<CpuOperators>(threads);
  throw invalid_argument("device must be cpu, got " + device + ": this build has no other (make build CUDA=1)");
}

}  // namespace turbomind
