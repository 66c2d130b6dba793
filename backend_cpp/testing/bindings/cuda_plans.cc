#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/latent/latent.h"
#include "kernels/cuda/prefill/prefill.h"
#include "testing/bindings/cuda_internals.h"

namespace py = pybind11;

namespace turbomind::cuda {

namespace {

// First row, rows, position of the first, index of the first block.
using Span = std::tuple<int, int, int, int>;

std::vector<int32_t> list(const int32_t* first, size_t size) {
  return {first, first + size};
}

// A piece and its plan, as latent.h and LatentPlanView name what is in them.
py::dict described(const LatentPiece& piece) {
  std::vector<int32_t> memory(piece.plan_size(), -2);
  fill_latent_plan(piece, memory.data());
  const LatentPlanView view = view_latent_plan(piece, memory.data());
  const auto count = static_cast<size_t>(view.first_item[view.teams]);
  const auto multiprocessors = static_cast<size_t>(piece.multiprocessors());
  py::dict plan;
  plan["piece_first_token"] = piece.first_token;
  plan["piece_rows"] = piece.rows;
  plan["filled_rows"] = *filled_rows(memory.data());
  plan["width"] = view.width;
  plan["teams"] = view.teams;
  plan["max_items"] = piece.max_items;
  plan["partial_rows"] = piece.partial_rows();
  plan["size"] = memory.size();
  plan["first_item"] = list(view.first_item, static_cast<size_t>(view.teams) + 1);
  const std::map<std::string, const int32_t*> of_items = {{"first_token", view.first_token},
                                                          {"first_block", view.first_block},
                                                          {"rows", view.rows},
                                                          {"keys", view.keys},
                                                          {"first_packed", view.first_packed},
                                                          {"first_key", view.first_key},
                                                          {"last_key", view.last_key},
                                                          {"partial", view.partial}};
  for (const auto& [name, first] : of_items) plan[name.c_str()] = list(first, count);
  const std::map<std::string, const int32_t*> of_multiprocessors = {{"merge_first", view.merge_first},
                                                                    {"merge_last", view.merge_last},
                                                                    {"merge_partial_first", view.merge_partial_first},
                                                                    {"merge_partial_last", view.merge_partial_last},
                                                                    {"merge_stride", view.merge_stride}};
  for (const auto& [name, first] : of_multiprocessors) plan[name.c_str()] = list(first, multiprocessors);
  return plan;
}

}  // namespace

void bind_plans(py::module_& m) {
  m.def("latent_plan", [](const std::vector<Span>& spans, int padded_spans, int heads, int multiprocessors) {
    std::vector<DeviceSpan> given;
    for (const auto& [row, count, position, block] : spans) given.push_back({row, count, position, block});
    std::vector<py::dict> plans;
    for (const LatentPiece& piece : cut_latents(given, padded_spans, heads, multiprocessors)) {
      plans.push_back(described(piece));
    }
    return plans;
  });
  // As PrefillPlanView names what is in it.
  m.def("prefill_plan", [](const std::vector<Span>& spans, int heads, int tile_rows, int multiprocessors) {
    PrefillPlan plan{{}, heads, tile_rows, multiprocessors};
    for (const auto& [row, count, position, block] : spans) plan.spans.push_back({row, count, position, block});
    std::vector<int32_t> memory(plan.size(), -2);
    fill_prefill_plan(plan, memory.data());
    const PrefillPlanView view = view_prefill_plan(plan, memory.data());
    return std::map<std::string, std::vector<int32_t>>{{"first_item", list(view.first_item, multiprocessors + 1)},
                                                       {"head", list(view.head, plan.items())},
                                                       {"tile", list(view.tile, plan.items())},
                                                       {"first_token", list(view.first_token, plan.items())},
                                                       {"rows", list(view.rows, plan.items())},
                                                       {"first_block", list(view.first_block, plan.items())},
                                                       {"keys", list(view.keys, plan.items())}};
  });
}

}  // namespace turbomind::cuda
