#include "model/ngrams.h"

#include <vector>

#include "model/streams.h"

namespace turbomind {

namespace {

template <class T, class From>
AlignedBuffer part_of(Operators& ops, const std::vector<From>& all, size_t number, size_t count) {
  const auto first = all.begin() + static_cast<ptrdiff_t>(number * count);
  return uploaded(ops, std::vector<T>(first, first + static_cast<ptrdiff_t>(count)));
}

}  // namespace

Ngrams::Ngrams(Operators& ops, const ModelSpec& spec, int max_tokens)
    : embed_(ops.operations().require<EmbedNgrams>()),
      gate_(ops.operations().require<GateNgrams>()),
      convolve_(ops.operations().require<CausalConv>()),
      spec_(*spec.ngrams),
      count_(spec.hyper_connections->count),
      size_(spec.hidden_size),
      embedded_(ops, max_tokens, spec_.width),
      keys_(ops, max_tokens, count_ * size_),
      queries_(ops, max_tokens, count_ * size_),
      values_(ops, max_tokens, size_) {
  const auto max_n = static_cast<size_t>(spec_.size);
  for (size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    multipliers_.push_back(part_of<uint64_t>(ops, spec_.multipliers, layer, max_n));
    head_sizes_.push_back(
        part_of<int32_t>(ops, spec_.head_sizes, layer, (max_n - 1) * static_cast<size_t>(spec_.heads)));
  }
}

void Ngrams::run(const StepContext& step, int index, const NgramWeights& weights, const RecurrentMixer& states,
                 const int32_t* tokens, float* streams) {
  const auto layer = static_cast<size_t>(index);
  const auto width = static_cast<size_t>(count_) * static_cast<size_t>(size_);
  embed_(step.ops,
         {states.ngram_state(step, index, 0), tokens, spec_.size, spec_.heads, spec_.end_token,
          multipliers_[layer].as<uint64_t>(), head_sizes_[layer].as<int32_t>(), weights.table.view(), embedded_});
  step.ops.linear(weights.keys.view, embedded_, step.rows, keys_, false);
  step.ops.linear(weights.values.view, embedded_, step.rows, values_, false);
  norm_parts(step, weights.key_norm, count_, size_, keys_, keys_);
  norm_parts(step, weights.query_norm, count_, size_, streams, queries_);
  float* gated = keys_;
  gate_(step.ops, {step.rows, count_, size_, keys_, queries_, values_, gated});
  step.ops.add_scaled(1, gated, step.rows, static_cast<int>(width), streams);
  norm_parts(step, weights.conv_norm, count_, size_, gated, gated);
  const ConvParams params{states.ngram_state(step, index, ngram_context_bytes(spec_)),
                          static_cast<int>(width),
                          conv_reach(spec_),
                          weights.conv.as<float>(),
                          nullptr,
                          true};
  convolve_(step.ops, {params, {gated, width}, step.rows, {queries_, width}});
  step.ops.add_scaled(1, queries_, step.rows, static_cast<int>(width), streams);
}

}  // namespace turbomind
