#include "model/adapters/adapter_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace turbomind {

void AdapterTable::upload(Operators& ops, int slot, std::unique_ptr<AdapterWeights> adapter) {
  shrink_ = ops.operations().require<LoraShrink>();
  gather_ = ops.operations().find<LoraGather>();
  expand_ = ops.operations().require<LoraExpand>();
  const std::vector<int>& ranks = adapter->ranks();
  const int largest_rank = ranks.empty() ? 0 : *std::max_element(ranks.begin(), ranks.end());
  if (largest_rank > max_rank_) {
    shrunk_ = float_buffer(ops, max_tokens_, largest_rank);
    max_rank_ = largest_rank;
  }
  adapter->upload(ops);
  adapters_.emplace(slot, std::move(adapter));
}

bool AdapterTable::begin_step(Operators& ops, const StepInput& input, int computed) {
  const auto has_adapter = [](const StepSpan& span) { return span.adapter != 0; };
  if (std::none_of(input.spans.begin(), input.spans.end(), has_adapter)) return false;
  auto** rows = rows_.host<const LoraWeight*>();
  std::fill_n(rows, computed, nullptr);
  max_ranks_.clear();
  for (const StepSpan& span : input.spans) {
    if (span.adapter == 0) continue;
    const auto found = adapters_.find(span.adapter);
    if (found == adapters_.end())
      throw internal_error("a step names adapter " + std::to_string(span.adapter) + ", which is not there");
    const AdapterWeights& adapter = *found->second;
    std::fill_n(rows + span.first_token, span.count, adapter.layers());
    max_ranks_.resize(adapter.ranks().size());
    for (size_t i = 0; i < max_ranks_.size(); ++i) max_ranks_[i] = std::max(max_ranks_[i], adapter.ranks()[i]);
  }
  rows_.upload(ops, static_cast<size_t>(computed) * sizeof(const LoraWeight*));
  computed_ = computed;
  return true;
}

void AdapterTable::add(Operators& ops, const LinearStorage& layer, const float* x, float* y) const {
  if (layer.adapted_layer < 0) return;
  const int max_rank = max_ranks_[static_cast<size_t>(layer.adapted_layer)];
  if (max_rank == 0) return;
  const LoraRows rows{rows_.device<const LoraWeight*>(), layer.adapted_layer, computed_, max_rank};
  shrink_(ops, {rows, x, layer.view.in_features, shrunk_.as<float>()});
  expand_(ops, {rows, shrunk_.as<float>(), layer.view.out_features, y});
}

void AdapterTable::add_embeddings(Operators& ops, const LinearStorage& table, const int32_t* numbers, float* y) const {
  if (table.adapted_layer < 0) return;
  const int max_rank = max_ranks_[static_cast<size_t>(table.adapted_layer)];
  if (max_rank == 0) return;
  const LoraRows rows{rows_.device<const LoraWeight*>(), table.adapted_layer, computed_, max_rank};
  gather_(ops, {rows, numbers, table.view.out_features, shrunk_.as<float>()});
  expand_(ops, {rows, shrunk_.as<float>(), table.view.in_features, y});
}

}  // namespace turbomind
