// Online-softmax attention of 16 queries at a time on tiles of bfloat16. Included by kernels_isa.cc only.
//
// Queries and softmax weights are A, [16 queries, 32 dimensions or tokens], keys and values B (cache_tiles.h). Decoding
// and prompts take the same way: the query heads of a key head, or of several rows, fill a tile's rows, each of which
// is computed apart. So what a query comes to depends neither on its neighbours nor on how a prompt was cut.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/aligned_buffer.h"
#include "kernels/cpu/amx/bf16_on_tiles.h"
#include "kernels/cpu/amx/cache_tiles.h"

namespace turbomind::TM_ISA {

struct AttentionWorkspace {
  AlignedBuffer queries;  // [tiles, key_dim / 32, 16, 32]
  AlignedBuffer single;   // the same of one query
  AlignedBuffer weights;  // [block_len / 32, 16, 32]
  AlignedBuffer keys;
  AlignedBuffer values;
  AlignedBuffer scores;  // [16, block_len]
  AlignedBuffer sums;    // [tiles, 16, value_dim]
  AlignedBuffer single_sums;
};

// A run's queries over the blocks of one key head.
template <class T>
class AttentionOnTiles {
 public:
  AttentionOnTiles(const AttentionParams& params, const AttentionQueries& queries, AttentionWorkspace& workspace)
      : params_(params),
        layout_(params.layout),
        queries_(queries),
        workspace_(workspace),
        key_depth_(round_up(layout_.key_dim, kTileDepth)),
        value_width_(round_up(layout_.value_dim, kTileSide)),
        tiles_((queries.count + kTileSide - 1) / kTileSide),
        factors_(workspace.queries.reserve<bf16>(static_cast<size_t>(tiles_) * kTileSide * key_depth_)),
        sums_(workspace.sums.reserve<float>(static_cast<size_t>(tiles_) * kTileSide * value_width_)) {
    const size_t tile = static_cast<size_t>(kTileSide) * key_depth_;
    std::fill_n(factors_, tiles_ * tile, bf16{0});
    std::fill_n(sums_, static_cast<size_t>(tiles_) * kTileSide * value_width_, 0.0f);
    const ConvertedRows rows{queries.count, {kTileSide, kTileDepth, static_cast<size_t>(key_depth_)}, factors_};
    for (int n = 0; n < queries.count; ++n) {
      const float* factors = queries.factors + static_cast<size_t>(n) * layout_.key_dim;
      convert_row_for_tiles(factors, layout_.key_dim, n, rows);
      queries.maximum[n] = -std::numeric_limits<float>::infinity();
      queries.sum[n] = 0;
    }
  }

  // One block of tokens from position `start`.
  void visit(const std::byte* keys, const std::byte* values, int start) {
    const auto seen = [&](int n) { return std::clamp(queries_.ends[n] - start, 0, layout_.block_len); };
    int tokens = 0;
    for (int n = 0; n < queries_.count; ++n) {
      if (std::max(queries_.begins[n] - start, 0) < seen(n)) tokens = std::max(tokens, seen(n));
    }
    if (tokens == 0) return;
    const Block block{
        start, Rounding(keys, layout_, layout_.key_dim), Rounding(values, layout_, layout_.value_dim),
        dequantize_keys(reinterpret_cast<const T*>(keys), Rounding(keys, layout_, layout_.key_dim), layout_.key_dim,
                        layout_.block_len, tokens, key_workspace()),
        dequantize_values(reinterpret_cast<const T*>(values), Rounding(values, layout_, layout_.value_dim),
                          layout_.value_dim, tokens, value_workspace())};
    for (int tile = 0; tile < tiles_; ++tile) {
      const int first = tile * kTileSide;
      compute(block, first, std::min(kTileSide, queries_.count - first),
              factors_ + static_cast<size_t>(first) * key_depth_, sums_ + static_cast<size_t>(first) * value_width_);
    }
  }

  void finish() const {
    for (int n = 0; n < queries_.count; ++n) {
      std::copy_n(sums_ + static_cast<size_t>(n) * value_width_, layout_.value_dim,
                  queries_.out + static_cast<size_t>(n) * layout_.value_dim);
    }
  }

 private:
  struct Block {
    int start;
    Rounding key_rounding;
    Rounding value_rounding;
    PairMatrix keys;
    PairMatrix values;
  };

  bf16* key_workspace() {
    return kIsQuantized<T> ? workspace_.keys.reserve<bf16>(static_cast<size_t>(layout_.key_dim) * layout_.block_len)
                           : nullptr;
  }
  bf16* value_workspace() {
    return kIsQuantized<T>
               ? workspace_.values.reserve<bf16>(static_cast<size_t>(layout_.value_dim) * (layout_.block_len + 1))
               : nullptr;
  }

  // Queries [first, first + count): `factors` is their A tiles, `sums` [16, value_width] what they have so far.
  void compute(const Block& block, int first, int count, const bf16* factors, float* sums) {
    int low[kTileSide];
    int high[kTileSide];
    int tokens = 0;
    for (int n = 0; n < count; ++n) {
      high[n] = std::clamp(queries_.ends[first + n] - block.start, 0, layout_.block_len);
      low[n] = std::clamp(queries_.begins[first + n] - block.start, 0, high[n]);
      if (low[n] == high[n]) low[n] = high[n] = 0;
      tokens = std::max(tokens, high[n]);
    }
    if (tokens == 0) return;
    const int padded = round_up(tokens, kLanes);
    const int stride = layout_.block_len;
    float* scores = workspace_.scores.reserve<float>(static_cast<size_t>(kTileSide) * stride);
    score(block.keys, factors, padded, scores);
    if (count > 1) {
      bool poisoned = false;
      for (int n = 0; n < count; ++n) {
        const float* row = scores + static_cast<size_t>(n) * stride;
        poisoned = poisoned || is_poisoned(row, 0, low[n]) || is_poisoned(row, high[n], tokens);
      }
      if (poisoned) {
        for (int n = 0; n < count; ++n) attention_single(block, first + n, n, factors, sums);
        return;
      }
    }
    const int depth = round_up(tokens, kTileDepth);
    bf16* weights = workspace_.weights.reserve<bf16>(static_cast<size_t>(kTileSide) * depth);
    std::fill_n(weights, static_cast<size_t>(kTileSide) * depth, bf16{0});
    const ConvertedRows rows{count, {kTileSide, kTileDepth, static_cast<size_t>(depth)}, weights};
    for (int n = 0; n < count; ++n) {
      const int query = first + n;
      float* p = scores + static_cast<size_t>(n) * stride;
      if (kIsQuantized<T>) multiply_by(block.key_rounding.scales, padded, p);
      const ScoreRule rule(params_, queries_, query);
      rule.apply(block.start, padded, p);
      const float correction = soften(low[n], high[n], padded, p, queries_.maximum[query], queries_.sum[query]);
      if (kIsQuantized<T>) weigh_by(block.value_rounding.scales, padded, p);
      convert_row_for_tiles(p, tokens, n, rows);
      float* query_sums = sums + static_cast<size_t>(n) * value_width_;
      for (int d = 0; d < value_width_; d += kLanes)
        store(query_sums + d, mul(load(query_sums + d), broadcast(correction)));
    }
    add_values(block.values, weights, tokens, sums);
  }

  // Where other queries of a tile look at what holds NaN or infinity, a weight of 0 would not keep it out.
  void attention_single(const Block& block, int query, int row, const bf16* factors, float* sums) {
    const size_t tile = static_cast<size_t>(kTileSide) * key_depth_;
    bf16* single = workspace_.single.reserve<bf16>(tile);
    std::fill_n(single, tile, bf16{0});
    for (int k = 0; k < key_depth_; k += kTileDepth) {
      const size_t step = static_cast<size_t>(k) * kTileSide;
      std::copy_n(factors + step + static_cast<size_t>(row) * kTileDepth, kTileDepth, single + step);
    }
    float* query_sums = workspace_.single_sums.reserve<float>(static_cast<size_t>(kTileSide) * value_width_);
    float* kept = sums + static_cast<size_t>(row) * value_width_;
    std::fill_n(query_sums, static_cast<size_t>(kTileSide) * value_width_, 0.0f);
    std::copy_n(kept, value_width_, query_sums);
    compute(block, query, 1, single, query_sums);
    std::copy_n(query_sums, value_width_, kept);
  }

  // scores[16, tokens] = queries keys
  void score(const PairMatrix& keys, const bf16* factors, int tokens, float* scores) const {
    int t = 0;
    for (; t + 4 * kTileSide <= tokens; t += 4 * kTileSide) score_columns<4>(keys, factors, t, scores);
    for (; t < tokens; t += kTileSide) score_columns<1>(keys, factors, t, scores);
  }
  template <int kColumns>
  void score_columns(const PairMatrix& keys, const bf16* factors, int token, float* scores) const {
    for_constants<kColumns>([](auto column) { tile_zero<column()>(); });
    for (int k = 0; k < layout_.key_dim; k += kTileDepth) {
      tile_load<4>(factors + static_cast<size_t>(k) * kTileSide, kTileBytes);
      multiply_columns<kColumns>(keys, k, token);
    }
    for_constants<kColumns>([&](auto column) {
      tile_store<column()>(scores + token + column() * kTileSide, layout_.block_len * sizeof(float));
    });
  }

  // sums[16, value_width] += weights values
  void add_values(const PairMatrix& values, const bf16* weights, int tokens, float* sums) const {
    int d = 0;
    for (; d + 4 * kTileSide <= value_width_; d += 4 * kTileSide) add_columns<4>(values, weights, tokens, d, sums);
    for (; d < value_width_; d += kTileSide) add_columns<1>(values, weights, tokens, d, sums);
  }
  template <int kColumns>
  void add_columns(const PairMatrix& values, const bf16* weights, int tokens, int first, float* sums) const {
    const size_t stride = value_width_ * sizeof(float);
    for_constants<kColumns>([&](auto column) { tile_load<column()>(sums + first + column() * kTileSide, stride); });
    for (int t = 0; t < tokens; t += kTileDepth) {
      tile_load<4>(weights + static_cast<size_t>(t) * kTileSide, kTileBytes);
      multiply_columns<kColumns>({values.data, tokens, values.width}, t, first);
    }
    for_constants<kColumns>([&](auto column) { tile_store<column()>(sums + first + column() * kTileSide, stride); });
  }

  // Tiles 0 to kColumns - 1 += tile 4 times a step of a matrix.
  template <int kColumns>
  static void multiply_columns(const PairMatrix& matrix, int k, int first) {
    for_constants<kColumns>([&](auto column) {
      constexpr int kMatrix = 5 + decltype(column)::value % 2;
      matrix.load<kMatrix>(k, first + column() * kTileSide);
      tile_dot_bf16<column(), 4, kMatrix>();
    });
  }

  static void multiply_by(const half* scales, int padded, float* scores) {
    for (int t = 0; t < padded; t += kLanes) store(scores + t, mul(load(scores + t), load(scales + t)));
  }
  // A masked token's scale may never have been written.
  static void weigh_by(const half* scales, int padded, float* p) {
    for (int t = 0; t < padded; t += kLanes) {
      const Vec weight = load(p + t);
      store(p + t, select_nonzero(weight, mul(weight, load(scales + t))));
    }
  }

  const AttentionParams& params_;
  const CacheLayout& layout_;
  const AttentionQueries& queries_;
  AttentionWorkspace& workspace_;
  int key_depth_;
  int value_width_;
  int tiles_;
  bf16* factors_;
  float* sums_;
};

template <class T>
void attention_on_tiles_typed(const AttentionParams& params, int kv_head, const int32_t* blocks, int begin, int end,
                              const AttentionQueries& queries) {
  static thread_local AttentionWorkspace workspace;
  TileShapes shapes;
  for (int tile = 0; tile < kTileCount; ++tile) shapes.set(tile, kTileSide, kTileBytes);
  const TileScope scope(shapes);
  const CacheLayout& layout = params.layout;
  AttentionOnTiles<T> attention(params, queries, workspace);
  for (int start = begin / layout.block_len * layout.block_len; start < end; start += layout.block_len) {
    const std::byte* block = params.pool + blocks[start / layout.block_len] * layout.block_bytes();
    attention.visit(block + layout.key_offset(params.layer, kv_head),
                    block + layout.value_offset(params.layer, kv_head), start);
  }
  attention.finish();
}

inline void attention_on_tiles(const AttentionParams& params, int kv_head, const int32_t* blocks, int begin, int end,
                               const AttentionQueries& queries) {
  with_element_of(params.layout.type, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, float>) {
      attention_typed<T>(params, kv_head, blocks, begin, end, queries);
    } else {
      attention_on_tiles_typed<T>(params, kv_head, blocks, begin, end, queries);
    }
  });
}

}  // namespace turbomind::TM_ISA
