#include "kernels/cuda/prefill/prefill.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace turbomind::cuda {

namespace {

constexpr int kItemFields = 6;
constexpr int kItemCost = 128;  // what an item costs besides its keys, in keys

// The arrays of a plan, one after the other; Int: int32_t or const int32_t.
template <class Int>
struct Arrays {
  Int* first_item;
  Int* items[kItemFields];

  Arrays(const PrefillPlan& plan, Int* memory) : first_item(memory) {
    memory += plan.multiprocessors + 1;
    for (Int*& field : items) field = std::exchange(memory, memory + plan.items());
  }
};

struct Tile {
  const DeviceSpan* span;
  int index;
  int cost;
};

}  // namespace

int PrefillPlan::items() const {
  int tiles = 0;
  for (const DeviceSpan& span : spans) tiles += divide_up(span.count, tile_rows);
  return tiles * heads;
}

size_t PrefillPlan::size() const {
  return static_cast<size_t>(multiprocessors + 1) + kItemFields * static_cast<size_t>(items());
}

void fill_prefill_plan(const PrefillPlan& plan, int32_t* memory) {
  std::vector<Tile> tiles;
  for (const DeviceSpan& span : plan.spans) {
    for (int t = 0; t < divide_up(span.count, plan.tile_rows); ++t) {
      const int keys = span.first_position + std::min(span.count, (t + 1) * plan.tile_rows);
      tiles.push_back({&span, t, keys + kItemCost});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.cost > b.cost; });

  using Load = std::pair<int64_t, int>;  // what a multiprocessor has to do, and which it is
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int m = 0; m < plan.multiprocessors; ++m) loads.emplace(0, m);
  struct Item {
    const Tile* tile;
    int head;
  };
  std::vector<std::vector<Item>> items(static_cast<size_t>(plan.multiprocessors));
  for (const Tile& tile : tiles) {
    for (int head = 0; head < plan.heads; ++head) {
      const auto [load, m] = loads.top();
      loads.pop();
      loads.emplace(load + tile.cost, m);
      items[static_cast<size_t>(m)].push_back({&tile, head});
    }
  }

  const Arrays<int32_t> arrays(plan, memory);
  int32_t next = 0;
  for (int m = 0; m < plan.multiprocessors; ++m) {
    arrays.first_item[m] = next;
    for (const auto& [tile, head] : items[static_cast<size_t>(m)]) {
      const DeviceSpan& span = *tile->span;
      const int32_t fields[kItemFields] = {head,       tile->index,      span.first_token,
                                           span.count, span.first_block, span.first_position + span.count};
      for (int f = 0; f < kItemFields; ++f) arrays.items[f][next] = fields[f];
      ++next;
    }
  }
  arrays.first_item[plan.multiprocessors] = next;
}

PrefillPlanView view_prefill_plan(const PrefillPlan& plan, const int32_t* memory) {
  const Arrays<const int32_t> arrays(plan, memory);
  const auto& [head, tile, first_token, rows, first_block, keys] = arrays.items;
  return {plan.multiprocessors, arrays.first_item, head, tile, first_token, rows, first_block, keys};
}

}  // namespace turbomind::cuda
