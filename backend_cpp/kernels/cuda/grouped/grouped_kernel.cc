#include "kernels/cuda/grouped/grouped_kernel.h"

#include <functional>
#include <map>

namespace turbomind::cuda {

namespace {

std::multimap<int, GroupedKernel, std::greater<>>& kernels() {
  static std::multimap<int, GroupedKernel, std::greater<>> added;
  return added;
}

}  // namespace

bool add_grouped_kernel(int rank, const GroupedKernel& kernel) {
  kernels().emplace(rank, kernel);
  return true;
}

std::vector<GroupedKernel> grouped_kernels_for(GroupedType type, int capability) {
  std::vector<GroupedKernel> found;
  for (const auto& [rank, kernel] : kernels()) {
    if (kernel.type == type && kernel.runs_on(capability)) found.push_back(kernel);
  }
  return found;
}

}  // namespace turbomind::cuda
