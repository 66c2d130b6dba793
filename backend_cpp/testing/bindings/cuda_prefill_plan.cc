#include <pybind11/stl.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/prefill/prefill.h"
#include "testing/bindings/cuda_internals.h"

namespace py = pybind11;

namespace turbomind::cuda {

void bind_prefill_plan(py::module_& m) {
  // First row, rows, position of the first, index of the first block.
  using Span = std::tuple<int, int, int, int>;
  // As PrefillPlanView names what is in it.
  m.def("prefill_plan", [](const std::vector<Span>& spans, int heads, int tile_rows, int multiprocessors) {
    PrefillPlan plan{{}, heads, tile_rows, multiprocessors};
    for (const auto& [row, count, position, block] : spans) plan.spans.push_back({row, count, position, block});
    std::vector<int32_t> memory(plan.size(), -2);
    fill_prefill_plan(plan, memory.data());
    const PrefillPlanView view = view_prefill_plan(plan, memory.data());
    const auto list = [](const int32_t* first, int size) { return std::vector<int32_t>(first, first + size); };
    return std::map<std::string, std::vector<int32_t>>{{"first_item", list(view.first_item, multiprocessors + 1)},
                                                       {"head", list(view.head, plan.items())},
                                                       {"tile", list(view.tile, plan.items())},
                                                       {"first_row", list(view.first_row, plan.items())},
                                                       {"rows", list(view.rows, plan.items())},
                                                       {"first_block", list(view.first_block, plan.items())},
                                                       {"keys", list(view.keys, plan.items())}};
  });
}

}  // namespace turbomind::cuda
