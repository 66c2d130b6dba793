#include "model/spec/shard.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <string>
#include <vector>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr int kMinUnit = 8;  // channels are divided in runs that vectors of 16-bit weights fill

// Collects what is in the way.
class Divider {
 public:
  Divider(int rank, int count, int group) : rank_(rank), count_(count), group_(group) {}

  Slice heads(const char* name, int count) {
    if (count % count_ != 0) reject(std::string(name) + " " + std::to_string(count) + " is no multiple of it");
    return part(count, 1);
  }

  // Where there are fewer heads than ranks, neighbouring ranks have the same one.
  Slice kv_heads(const char* name, int count) {
    if (count % count_ == 0) return part(count, 1);
    if (count_ % count != 0) {
      reject(std::string(name) + " " + std::to_string(count) + " is neither a multiple nor a divisor of it");
      return count;
    }
    const int head = rank_ * count / count_;
    return {count, {head, head + 1}};
  }

  // All of them where ranks do not divide them.
  Slice groups(int count) const { return count % count_ == 0 ? part(count, 1) : Slice(count); }

  Slice channels(const char* name, int count) {
    if (count == 0) return 0;
    const int unit = std::lcm(kMinUnit, group_);
    if ((count + unit - 1) / unit < count_) {
      reject(std::string(name) + " " + std::to_string(count) + " has fewer groups of " + std::to_string(unit) +
             " than that");
    }
    return part(count, unit);
  }

  // Parts that are consecutive where each has as much room as the first.
  int part_of_tokens(int count) const {
    const int units = (count + kMinUnit - 1) / kMinUnit;
    return std::max((units + count_ - 1) / count_, 1) * kMinUnit;
  }
  Slice tokens(int count) const {
    const int size = part_of_tokens(count);
    return {count, {std::min(rank_ * size, count), std::min((rank_ + 1) * size, count)}};
  }

  // Inputs that come in heads, whatever is in one group.
  void check_groups(const char* name, int inputs_of_a_rank) {
    if (inputs_of_a_rank % group_ == 0) return;
    reject(std::string(name) + " would be cut inside a group of " + std::to_string(group_) +
           " inputs that have one scale: a rank has " + std::to_string(inputs_of_a_rank) + " inputs");
  }

  void reject(const std::string& problem) { problems_ += (problems_.empty() ? "" : ", and ") + problem; }
  const std::string& problems() const { return problems_; }

 private:
  // Runs of `unit` elements, as evenly as can be.
  Slice part(int count, int unit) const {
    const int units = (count + unit - 1) / unit;
    return {count, {rank_ * units / count_ * unit, std::min((rank_ + 1) * units / count_ * unit, count)}};
  }

  int rank_;
  int count_;
  int group_;
  std::string problems_;
};

AttentionHeads divided_heads(const ModelSpec& spec, int kind, Divider& divider) {
  const HeadSizes sizes = head_sizes(spec, kind);
  if (attention_layer_count(spec) == 0) return {sizes.heads, sizes.kv_heads};
  AttentionHeads heads{divider.heads("num_heads", sizes.heads), 0};
  if (const auto& mla = attention_kind(spec, kind).mla) {
    heads.kv = heads.queries;
    divider.check_groups("attention.o", heads.queries.size() * mla->value_dim);
  } else {
    heads.kv = divider.kv_heads("num_kv_heads", sizes.kv_heads);
    divider.check_groups("attention.o", heads.queries.size() * sizes.value_dim);
  }
  return heads;
}

// Layers of one size are divided alike, and refused once.
std::vector<Slice> divided_channels(const ModelSpec& spec, Divider& divider) {
  std::map<int, Slice> by_size;
  std::vector<Slice> channels;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const int size = has_dense_mlp(spec, layer) ? mlp_size(spec, layer) : 0;
    if (!by_size.contains(size)) by_size.emplace(size, divider.channels("intermediate_size", size));
    channels.push_back(by_size.at(size));
  }
  return channels;
}

template <class T>
std::vector<T> kept(const std::vector<T>& values, const Slice& slice) {
  std::vector<T> result;
  for (const Slice::Range& range : slice.ranges()) {
    if (!values.empty()) result.insert(result.end(), values.begin() + range.begin, values.begin() + range.end);
  }
  return result;
}

// Gives the spec of a rank its heads.
void keep_heads(Shard& shard) {
  ModelSpec& spec = shard.spec;
  for (size_t kind = 0; kind < shard.attention.size(); ++kind) {
    const AttentionHeads& heads = shard.attention[kind];
    AttentionSpec& kind_spec = kind == 0 ? spec.attention : spec.attentions[kind - 1];
    kind_spec.num_heads = heads.queries.size();
    kind_spec.num_kv_heads = heads.kv.size();
    kind_spec.alibi_slopes = kept(kind_spec.alibi_slopes, heads.queries);
  }
  spec.num_heads = spec.attention.num_heads;
  spec.num_kv_heads = spec.attention.num_kv_heads;
}

}  // namespace

namespace {

// Operations that need all heads or channels of a layer, of which a rank has a part.
void reject_undivided(const ModelSpec& spec, Divider& divider) {
  const auto norms_projections = [&](int kind) { return attention_kind(spec, kind).qk_norm == QkNorm::kProjection; };
  if (std::ranges::any_of(std::views::iota(0, attention_count(spec)), norms_projections)) {
    divider.reject("queries and keys go through a norm over all heads (attention.qk_norm), which no rank has");
  }
  if (spec.attention.block_indexer && spec.attention.block_indexer->is_by_best) {
    divider.reject("each key/value head chooses its own blocks (attention.block_indexer), by heads that no rank has");
  }
  if (spec.compressed_attention) {
    divider.reject("all heads attend to one key (compressed_attention), and their groups go through one layer");
  }
  if (std::any_of(spec.mlp.cuts.begin(), spec.mlp.cuts.end(), [](float cut) { return cut > 0; })) {
    divider.reject("activations are cut at a spread over all channels (mlp.cuts), which no rank has");
  }
}

}  // namespace

Shard Shard::whole(ModelSpec spec) {
  return of(spec, 0, 1, 1);
}

Shard Shard::of(const ModelSpec& spec, int rank, int count, int group) {
  Divider divider(rank, count, group);
  Shard shard{rank, count, spec};
  for (int kind = 0; kind < attention_count(spec); ++kind) {
    shard.attention.push_back(divided_heads(spec, kind, divider));
  }
  if (const auto& recurrence = spec.recurrence) {
    shard.state_heads = divider.heads("recurrence.num_heads", recurrence->num_heads);
    shard.state_key_heads = divider.kv_heads("recurrence.num_key_heads", recurrence->num_key_heads);
    if (recurrence->norm == RecurrenceNorm::kGroups) {
      shard.norm_groups = divider.groups(recurrence->norm_groups);
    }
    divider.check_groups("recurrence.out", shard.state_heads.size() * recurrence->value_dim);
  }
  shard.channels = divided_channels(spec, divider);
  if (spec.moe) {
    shard.expert_channels = divider.channels("moe.intermediate_size", spec.moe->intermediate_size);
    shard.shared_channels = divider.channels("moe.shared_intermediate_size", spec.moe->shared_intermediate_size);
  }
  shard.vocab = divider.tokens(logit_count(spec));
  shard.vocab_part = divider.part_of_tokens(logit_count(spec));
  if (count > 1) reject_undivided(spec, divider);
  if (!divider.problems().empty()) {
    throw invalid_argument("tp=" + std::to_string(count) + " does not fit " + spec.architecture + ": " +
                           divider.problems() + "; choose another tp");
  }
  keep_heads(shard);
  shard.spec.intermediate_size = 0;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const int size = shard.channels[static_cast<size_t>(layer)].size();
    shard.spec.intermediate_size = std::max(shard.spec.intermediate_size, size);
    if (!spec.mlp.sizes.empty()) shard.spec.mlp.sizes[static_cast<size_t>(layer)] = size;
  }
  if (spec.moe) {
    shard.spec.moe->intermediate_size = shard.expert_channels.size();
    shard.spec.moe->shared_intermediate_size = shard.shared_channels.size();
  }
  if (spec.recurrence) {
    shard.spec.recurrence->num_heads = shard.state_heads.size();
    shard.spec.recurrence->num_key_heads = shard.state_key_heads.size();
    shard.spec.recurrence->slopes = kept(spec.recurrence->slopes, shard.state_heads);
    if (shard.norm_groups.size() > 0) shard.spec.recurrence->norm_groups = shard.norm_groups.size();
  }
  return shard;
}

}  // namespace turbomind
