// Sparse attention against sums in float64, with NaN in all that a row must not read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/compressed_attention.h"
#include "kernels/sparse_attention.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr int kHeads = 6;
constexpr int kKeyDim = 24;
constexpr int kValueDim = 16;
constexpr int kIndexHeads = 11;
constexpr int kIndexDim = 10;
constexpr int kBlockLen = 16;

struct Sizes {
  CacheType type;
  int context;  // tokens of the sequence, of which the last `rows` run
  int rows;
  int top_k;
};

std::vector<float> random_floats(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

// Keys and values of one sequence, in blocks that are in no order.
struct Cache {
  AttentionParams params;
  std::vector<int32_t> blocks;
  std::vector<std::byte> memory;
  AttentionSpan span;

  Cache(CacheLayout layout, const Sizes& sizes, std::mt19937& random) {
    layout.num_layers = 2;
    layout.num_kv_heads = std::max(1, layout.num_kv_heads);
    layout.block_len = kBlockLen;
    blocks.resize(static_cast<size_t>(sizes.context + kBlockLen - 1) / kBlockLen);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::ranges::shuffle(blocks, random);
    memory.resize(blocks.size() * layout.block_bytes());
    params.layout = layout;
    params.layer = 1;
    params.pool = memory.data();
  }

  void use(AttentionSpan of) {
    span = of;
    span.blocks = blocks.data();
    params.spans = &span;
    params.span_count = 1;
  }

  // Of the tokens from `first` on.
  void write(ThreadPool& pool, int first, std::vector<float>& keys, std::vector<float>& values) {
    const int count = params.layout.num_kv_heads;
    const auto rows = static_cast<int>(keys.size()) / params.layout.key_dim / count;
    use({0, rows, first, nullptr});
    const auto heads = [&](std::vector<float>& numbers, int dim) {
      const auto size = static_cast<size_t>(dim);
      return HeadsView{numbers.data(), rows, size * static_cast<size_t>(count), count, size, dim};
    };
    rope_and_write(pool, {}, params, {}, nullptr, heads(keys, params.layout.key_dim),
                   heads(values, params.layout.value_dim));
  }
};

// Numbers in the cache are rounded to its type; the expected result is of what was written, to `tolerance`.
double tolerance_of(CacheType type) {
  switch (type) {
    case CacheType::kFloat32:
      return 1e-5;
    case CacheType::kBFloat16:
      return 0.03;
    case CacheType::kInt8:
      return 0.08;
    case CacheType::kInt4:
      return 0.9;
  }
  return 0;
}

std::vector<int32_t> highest(const std::vector<double>& scores, int count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t t) { return scores[static_cast<size_t>(t)]; });
  order.resize(static_cast<size_t>(count));
  std::ranges::sort(order);
  return order;
}

template <class T>
double dot(const float* a, const T* b, size_t size) {
  double sum = 0;
  for (size_t d = 0; d < size; ++d) sum += double{a[d]} * double{b[d]};
  return sum;
}

// Attention of rows whose key/value heads see these tokens [rows, key/value heads], where others are NaN.
void check_attention(ThreadPool& pool, std::mt19937& random, const Sizes& shape,
                     const std::vector<std::vector<int32_t>>& seen, const std::vector<int32_t>& chosen, int block,
                     bool is_by_head) {
  const auto context = static_cast<size_t>(shape.context);
  const auto kv_heads = seen.size() / static_cast<size_t>(shape.rows);
  std::vector<bool> is_seen(context, false);
  for (const std::vector<int32_t>& tokens : seen) {
    for (const int32_t t : tokens) is_seen[static_cast<size_t>(t)] = true;
  }
  std::vector<float> keys = random_floats(random, context * kv_heads * kKeyDim);
  std::vector<float> values = random_floats(random, context * kv_heads * kValueDim);
  std::vector<float> poisoned_keys = keys;
  std::vector<float> poisoned_values = values;
  for (size_t t = 0; t < context; ++t) {
    if (is_seen[t]) continue;
    std::fill_n(poisoned_keys.begin() + static_cast<ptrdiff_t>(t * kv_heads * kKeyDim), kv_heads * kKeyDim, NAN);
    std::fill_n(poisoned_values.begin() + static_cast<ptrdiff_t>(t * kv_heads * kValueDim), kv_heads * kValueDim, NAN);
  }
  Cache cache(
      {.type = shape.type, .num_kv_heads = static_cast<int>(kv_heads), .key_dim = kKeyDim, .value_dim = kValueDim},
      shape, random);
  cache.write(pool, 0, poisoned_keys, poisoned_values);
  cache.use({0, shape.rows, shape.context - shape.rows, nullptr});
  cache.params.num_heads = kHeads;
  std::vector<float> queries = random_floats(random, static_cast<size_t>(shape.rows) * kHeads * kKeyDim);
  for (float& query : queries) query *= 0.2F;
  const HeadsView view{queries.data(), shape.rows, kHeads * kKeyDim, kHeads, kKeyDim, kKeyDim};
  std::vector<float> out(static_cast<size_t>(shape.rows) * kHeads * kValueDim);
  SparseAttention{cache.params, shape.top_k, chosen.data(), view, out.data(), block, is_by_head}.run(pool);

  double furthest = 0;
  for (int row = 0; row < shape.rows; ++row) {
    for (int h = 0; h < kHeads; ++h) {
      std::vector<double> expected(kValueDim, 0);
      double sum = 0;
      const size_t kv_head = static_cast<size_t>(h) * kv_heads / kHeads;
      for (const int32_t t : seen[static_cast<size_t>(row) * kv_heads + kv_head]) {
        const size_t head = static_cast<size_t>(t) * kv_heads + kv_head;
        const double weight = std::exp(dot(view.head(static_cast<size_t>(row), h), &keys[head * kKeyDim], kKeyDim));
        sum += weight;
        for (size_t d = 0; d < kValueDim; ++d) expected[d] += weight * values[head * kValueDim + d];
      }
      for (size_t d = 0; d < kValueDim; ++d) {
        const double found = out[static_cast<size_t>(row * kHeads + h) * kValueDim + d];
        CHECK(!std::isnan(found));
        furthest = std::max(furthest, std::abs(found - expected[d] / sum));
      }
    }
  }
  CHECK(furthest < tolerance_of(shape.type));
}

// A cache of index keys of its type, which are rounded to it.
struct Index : Cache {
  std::vector<float> keys;

  Index(const Sizes& sizes, std::mt19937& random)
      : Cache({.type = sizes.type == CacheType::kFloat32 ? sizes.type : CacheType::kBFloat16,
               .key_dim = kIndexDim,
               .value_dim = 0},
              sizes, random),
        keys(random_floats(random, static_cast<size_t>(sizes.context) * kIndexDim)) {
    if (params.layout.type == CacheType::kFloat32) return;
    for (float& key : keys) key = to_float(to_bf16(key));
  }

  const float* key(int token) const { return &keys[static_cast<size_t>(token) * kIndexDim]; }

  void write(ThreadPool& pool) {
    std::vector<float> nothing(keys.size() / kIndexDim);
    Cache::write(pool, 0, keys, nothing);
  }
};

void check_sparse(const Sizes& sizes, int threads) {
  std::mt19937 random(7);
  ThreadPool pool(threads);
  const int first = sizes.context - sizes.rows;
  Index index(sizes, random);
  index.write(pool);
  index.use({0, sizes.rows, first, nullptr});
  std::vector<float> index_queries = random_floats(random, static_cast<size_t>(sizes.rows) * kIndexHeads * kIndexDim);
  const std::vector<float> weights = random_floats(random, static_cast<size_t>(sizes.rows) * kIndexHeads);
  const HeadsView index_view{index_queries.data(), sizes.rows, kIndexHeads * kIndexDim,
                             kIndexHeads,          kIndexDim,  kIndexDim};
  std::vector<int32_t> chosen(static_cast<size_t>(sizes.rows) * static_cast<size_t>(sizes.top_k), -1);
  ChooseKeys{index.params, sizes.top_k, index_view, weights.data(), chosen.data()}.run(pool);

  std::vector<std::vector<int32_t>> seen;  // of each row
  for (int row = 0; row < sizes.rows; ++row) {
    const int kv_len = first + row + 1;
    std::vector<double> scores(static_cast<size_t>(kv_len));
    for (int t = 0; t < kv_len; ++t) {
      for (int h = 0; h < kIndexHeads; ++h) {
        const double product = dot(index_view.head(static_cast<size_t>(row), h), index.key(t), kIndexDim);
        scores[static_cast<size_t>(t)] +=
            weights[static_cast<size_t>(row) * kIndexHeads + static_cast<size_t>(h)] * std::max(product, 0.0);
      }
    }
    seen.push_back(highest(scores, std::min(kv_len, sizes.top_k)));
    if (kv_len > sizes.top_k) {
      const auto begin = chosen.begin() + static_cast<ptrdiff_t>(row) * sizes.top_k;
      CHECK(std::vector(begin, begin + sizes.top_k) == seen.back());
    }
  }
  check_attention(pool, random, sizes, seen, chosen, 1, false);
}

// ---- blocks ----

struct BlockSizes {
  CacheType type;
  int context;
  int rows;
  int budget;
  int block;
};

constexpr int kKvHeads = 2;
constexpr int kPairs = 3;
const std::vector<float> kFrequencies{1.0F, 0.3F, 0.02F};

// The index key of a block that begins at `first`: of keys [tokens, kIndexDim], in float64.
std::vector<double> block_key(const std::vector<float>& keys, const std::vector<float>& norm, int first, int block) {
  std::vector<double> key(kIndexDim, 0);
  double squares = 0;
  for (size_t d = 0; d < kIndexDim; ++d) {
    for (int t = first; t < first + block; ++t) key[d] += keys[static_cast<size_t>(t) * kIndexDim + d] / double(block);
    squares += key[d] * key[d] / kIndexDim;
  }
  for (size_t d = 0; d < kIndexDim; ++d) key[d] *= norm[d] / std::sqrt(squares + 1e-6);
  for (size_t i = 0; i < kPairs; ++i) {
    const double angle = first * double{kFrequencies[i]};
    const double a = key[i];
    const double b = key[i + kPairs];
    key[i] = a * std::cos(angle) - b * std::sin(angle);
    key[i + kPairs] = b * std::cos(angle) + a * std::sin(angle);
  }
  return key;
}

// The chosen tokens of each row, by float64, and all that is chosen and attended to.
void check_blocks(const BlockSizes& sizes, int threads) {
  std::mt19937 random(11);
  ThreadPool pool(threads);
  const int first = sizes.context - sizes.rows;
  const int top_k = sizes.budget + sizes.block - 1;
  const Sizes shape{sizes.type, sizes.context, sizes.rows, top_k};

  Index index(shape, random);
  const CacheType index_type = index.params.layout.type;
  const std::vector<float> norm = random_floats(random, kIndexDim);
  const int cuts[] = {0, first / 2, first, sizes.context};  // within blocks
  for (int i = 0; i < 3; ++i) {
    const int rows = cuts[i + 1] - cuts[i];
    index.use({0, rows, cuts[i], nullptr});
    const HeadsView view = rows_view(index.keys.data() + static_cast<size_t>(cuts[i]) * kIndexDim, rows, kIndexDim);
    std::vector<int32_t> starts(static_cast<size_t>(rows));
    std::iota(starts.begin(), starts.end(), cuts[i] + 1 - sizes.block);
    std::vector<float> cosine(starts.size() * kPairs), sine(cosine.size());
    rope_table(pool, {starts.data(), nullptr, kFrequencies.data(), kPairs}, rows, cosine.data(), sine.data());
    const CacheRows keys{index.params, kBlockLen};
    WriteCacheRows{keys, 0, view}.run(pool);
    CompressKeys{keys,        0,
                 keys,        0,
                 sizes.block, 1,
                 nullptr,     {NormKind::kRms, 1e-6F, norm.data(), nullptr},
                 kIndexDim,   {cosine.data(), sine.data(), kPairs}}
        .run(pool);
  }
  // Of the index keys, those of tokens are not read by a choice.
  const size_t number = index_type == CacheType::kFloat32 ? 4 : 2;
  for (int t = 0; t < sizes.context; ++t) {
    if ((t + 1) % sizes.block == 0) continue;
    const CacheLayout& layout = index.params.layout;
    std::byte* block = index.memory.data() +
                       static_cast<size_t>(index.blocks[static_cast<size_t>(t / kBlockLen)]) * layout.block_bytes();
    std::fill_n(block + layout.key_offset(1, 0) + static_cast<size_t>(t % kBlockLen) * kIndexDim * number,
                kIndexDim * number, std::byte{0xFF});
  }
  index.use({0, sizes.rows, first, nullptr});
  std::vector<float> index_queries = random_floats(random, static_cast<size_t>(sizes.rows) * kIndexHeads * kIndexDim);
  const HeadsView index_view{index_queries.data(), sizes.rows, kIndexHeads * kIndexDim,
                             kIndexHeads,          kIndexDim,  kIndexDim};
  std::vector<int32_t> chosen(static_cast<size_t>(sizes.rows) * static_cast<size_t>(top_k), -1);
  ChooseCompressedKeys{
      {index.params, kBlockLen}, 0, sizes.block, sizes.budget / sizes.block, index_view, nullptr, chosen.data(), true}
      .run(pool);

  std::vector<std::vector<int32_t>> seen;  // of each row, for each key/value head
  for (int row = 0; row < sizes.rows; ++row) {
    const int kv_len = first + row + 1;
    const int blocks = kv_len / sizes.block;
    std::vector<double> scores(static_cast<size_t>(blocks));
    for (int b = 0; b < blocks; ++b) {
      const std::vector<double> key = block_key(index.keys, norm, b * sizes.block, sizes.block);
      for (int h = 0; h < kIndexHeads; ++h) {
        scores[static_cast<size_t>(b)] +=
            std::max(dot(index_view.head(static_cast<size_t>(row), h), key.data(), kIndexDim), 0.0);
      }
    }
    std::vector<int32_t> tokens;
    for (const int32_t b : highest(scores, std::min(blocks, sizes.budget / sizes.block))) {
      for (int i = 0; i < sizes.block; ++i) tokens.push_back(b * sizes.block + i);
    }
    for (int t = blocks * sizes.block; t < kv_len; ++t) tokens.push_back(t);
    if (kv_len > top_k) {
      const auto begin = chosen.begin() + static_cast<ptrdiff_t>(row) * top_k;
      const std::vector<int32_t> found(begin, begin + static_cast<ptrdiff_t>(tokens.size()));
      // Near the threshold, keys that were rounded may be chosen in place of others.
      if (index_type == CacheType::kFloat32) CHECK(found == tokens);
      tokens = found;
    }
    seen.insert(seen.end(), kKvHeads, tokens);
  }

  check_attention(pool, random, shape, seen, chosen, sizes.block, false);
}

// The same where each key/value head chooses `budget` / `block` blocks by their best token.
void check_best_blocks(const BlockSizes& sizes, int threads) {
  std::mt19937 random(13);
  ThreadPool pool(threads);
  const int first = sizes.context - sizes.rows;
  const Sizes shape{sizes.type, sizes.context, sizes.rows, sizes.budget};
  Index index(shape, random);
  index.write(pool);
  index.use({0, sizes.rows, first, nullptr});
  std::vector<float> queries = random_floats(random, static_cast<size_t>(sizes.rows) * kKvHeads * kIndexDim);
  const HeadsView view{queries.data(), sizes.rows, kKvHeads * kIndexDim, kKvHeads, kIndexDim, kIndexDim};
  std::vector<int32_t> chosen(static_cast<size_t>(sizes.rows * kKvHeads * sizes.budget), -1);
  ChooseBestBlocks{index.params, sizes.budget / sizes.block, sizes.block, view, chosen.data()}.run(pool);

  std::vector<std::vector<int32_t>> seen;
  for (int row = 0; row < sizes.rows; ++row) {
    const int kv_len = first + row + 1;
    const int own = (kv_len - 1) / sizes.block;
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<double> best(static_cast<size_t>(own), -std::numeric_limits<double>::infinity());
      for (int t = 0; t < own * sizes.block; ++t) {
        double& of_block = best[static_cast<size_t>(t / sizes.block)];
        of_block = std::max(of_block, dot(view.head(static_cast<size_t>(row), head), index.key(t), kIndexDim));
      }
      std::vector<int32_t>& tokens = seen.emplace_back();
      for (const int32_t b : highest(best, std::min(own, sizes.budget / sizes.block - 1))) {
        for (int i = 0; i < sizes.block; ++i) tokens.push_back(b * sizes.block + i);
      }
      for (int t = own * sizes.block; t < kv_len; ++t) tokens.push_back(t);
      const auto begin = chosen.begin() + static_cast<ptrdiff_t>((row * kKvHeads + head) * sizes.budget);
      if (kv_len > sizes.budget) CHECK(std::equal(tokens.begin(), tokens.end(), begin));
    }
  }
  check_attention(pool, random, shape, seen, chosen, sizes.block, true);
}

}  // namespace

TEST(rows_attend_to_the_blocks_of_the_highest_scores_and_read_no_other) {
  for (const auto type : {CacheType::kFloat32, CacheType::kBFloat16, CacheType::kInt8, CacheType::kInt4}) {
    check_blocks({type, 700, 1, 32, 4}, 1);
    check_blocks({type, 701, 7, 30, 5}, 2);   // blocks that pages of the cache cut
    check_blocks({type, 90, 80, 40, 20}, 2);  // longer than pages; some rows see fewer tokens than they may choose
    check_blocks({type, 40, 40, 40, 8}, 2);   // all do
  }
}

TEST(heads_attend_to_the_blocks_of_their_best_tokens_and_read_no_other) {
  for (const auto type : {CacheType::kFloat32, CacheType::kBFloat16, CacheType::kInt8, CacheType::kInt4}) {
    check_best_blocks({type, 700, 1, 32, 4}, 1);
    check_best_blocks({type, 701, 7, 30, 5}, 2);   // blocks that pages of the cache cut
    check_best_blocks({type, 90, 80, 40, 20}, 2);  // longer than pages; some rows see fewer tokens than they may choose
    check_best_blocks({type, 90, 80, 20, 20}, 2);  // their own alone
  }
}

TEST(a_row_of_a_long_context_reads_its_blocks_and_their_index_keys) {
  check_blocks({CacheType::kFloat32, 32000, 1, 2048, 16}, 2);
  check_blocks({CacheType::kBFloat16, 32003, 2, 2048, 16}, 2);
}

TEST(rows_attend_to_the_tokens_of_the_highest_scores_and_read_no_other) {
  for (const auto type : {CacheType::kFloat32, CacheType::kBFloat16, CacheType::kInt8, CacheType::kInt4}) {
    check_sparse({type, 700, 1, 33}, 1);
    check_sparse({type, 700, 3, 33}, 2);
    check_sparse({type, 90, 80, 32}, 2);  // some rows see fewer tokens than they may choose
    check_sparse({type, 40, 40, 40}, 2);  // all do
  }
}

TEST(a_row_of_a_long_context_reads_as_many_tokens_as_it_chooses) {
  check_sparse({CacheType::kFloat32, 32000, 1, 2048}, 2);
  check_sparse({CacheType::kBFloat16, 32000, 2, 2048}, 2);
}

TEST(a_choice_among_equal_scores_takes_the_earlier_tokens) {
  ThreadPool pool(2);
  std::mt19937 random(1);
  const Sizes sizes{CacheType::kFloat32, 100, 1, 20};
  Index index(sizes, random);
  std::ranges::fill(index.keys, 1.0f);
  for (int t : {60, 61}) std::fill_n(index.keys.begin() + t * kIndexDim, kIndexDim, 2.0f);
  index.write(pool);
  index.use({0, 1, 99, nullptr});
  std::vector<float> query(kIndexDim, 1.0f);
  const float weight = 1;
  std::vector<int32_t> chosen(20);
  const HeadsView view{query.data(), 1, kIndexDim, 1, kIndexDim, kIndexDim};
  ChooseKeys{index.params, 20, view, &weight, chosen.data()}.run(pool);
  std::vector<int32_t> expected(20);
  std::iota(expected.begin(), expected.end(), 0);
  expected[18] = 60;
  expected[19] = 61;
  CHECK(chosen == expected);
}

TEST(a_row_attends_alone_as_it_does_among_others) {
  ThreadPool pool(2);
  std::mt19937 random(3);
  const Sizes sizes{CacheType::kBFloat16, 600, 9, 530};
  Cache cache({.type = sizes.type, .key_dim = kKeyDim, .value_dim = kValueDim}, sizes, random);
  std::vector<float> keys = random_floats(random, 600 * kKeyDim);
  std::vector<float> values = random_floats(random, 600 * kValueDim);
  cache.write(pool, 0, keys, values);
  cache.params.num_heads = kHeads;
  std::vector<int32_t> chosen(9 * 530);
  for (size_t row = 0; row < 9; ++row)
    std::iota(chosen.begin() + static_cast<ptrdiff_t>(row * 530),
              chosen.begin() + static_cast<ptrdiff_t>((row + 1) * 530), 7 * static_cast<int>(row));
  std::vector<float> queries = random_floats(random, 9 * kHeads * kKeyDim);
  const auto run = [&](int row, int rows) {
    cache.use({0, rows, 591 + row, nullptr});
    std::vector<float> out(static_cast<size_t>(rows) * kHeads * kValueDim);
    const HeadsView view{queries.data() + row * kHeads * kKeyDim, rows, kHeads * kKeyDim, kHeads, kKeyDim, kKeyDim};
    SparseAttention{cache.params, 530, chosen.data() + row * 530, view, out.data()}.run(pool);
    return out;
  };
  const std::vector<float> together = run(0, 9);
  for (int row = 0; row < 9; ++row) {
    const auto begin = together.begin() + row * kHeads * kValueDim;
    CHECK(run(row, 1) == std::vector(begin, begin + kHeads * kValueDim));
  }
}

}  // namespace turbomind::testing
