#include "kernels/cuda/sampling/sampling_row.cuh"

// A block draws one row's token.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kListSize = 2048;
constexpr int kNucleusTokens = 1024;  // this many of the most likely tokens are looked at for a nucleus
constexpr int kOrderBits = 64;

// The most likely tokens of a row, in any order.
struct CandidateList {
  uint64_t order_keys[kListSize];
  Weight weights[kListSize];
  int count;  // may be more than there is room for
};

struct Row {
  const SamplingRow& sampling;
  const float* logits;
  int vocab_size;
  ChunkTop top;
  double u;
};

// The greatest place (of `bits` bits) whose sum over it and all greater ones still meets `reaches`, which 0's does.
// sum(place) is the sum over the block.
template <class Sum, class Reaches>
__device__ uint64_t last_key(int bits, Sum&& sum, Reaches&& reaches) {
  uint64_t order = 0;
  for (int bit = bits - 1; bit >= 0; --bit) {
    const uint64_t next = order | uint64_t{1} << bit;
    if (reaches(sum(next))) order = next;
  }
  return order;
}

// Sums value(token, place) over the row's tokens at `order` or greater.
template <class Value>
__device__ Weight row_sum(const Row& row, uint64_t order, Value&& value) {
  Weight sum = 0;
  for (int token = threadIdx.x; token < row.vocab_size; token += kThreads) {
    const float logit = row.logits[token];
    if (order_key(logit, token) >= order) sum += value(logit);
  }
  return block_sum<kThreads>(sum);
}

// ---- in order of ids, no limit but min_p ----

__device__ int32_t draw_by_id(const Row& row, const Weight* sums, int chunks) {
  __shared__ int chosen_chunk;
  __shared__ double chosen_rest;
  if (threadIdx.x == 0) {
    Weight total = 0;
    for (int i = 0; i < chunks; ++i) total += sums[i];
    double rest = row.u * static_cast<double>(total);
    int chunk = 0;
    while (chunk + 1 < chunks && rest >= static_cast<double>(sums[chunk])) rest -= static_cast<double>(sums[chunk++]);
    chosen_chunk = chunk;
    chosen_rest = rest;
  }
  __syncthreads();
  const int first = chosen_chunk * kChunkTokens;
  const int count = min(kChunkTokens, row.vocab_size - first);
  const double rest = chosen_rest;
  const Weight threshold = static_cast<Weight>(row.sampling.min_p * kWeightOne);
  // Places from the last token, 0, to the first.
  const auto sum = [&](uint64_t order) {
    Weight thread_sum = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const Weight weight = weight_of(row.logits[first + i], row.top.logit, row.sampling.temperature);
      if (static_cast<uint64_t>(kChunkTokens - 1 - i) >= order && weight >= threshold) thread_sum += weight;
    }
    return block_sum<kThreads>(thread_sum);
  };
  constexpr int kChunkBits = 11;
  static_assert(kChunkTokens == 1 << kChunkBits);
  const auto reaches = [&](Weight weight) { return static_cast<double>(weight) > rest; };
  if (!reaches(sum(0))) return row.top.token;
  return first + kChunkTokens - 1 - static_cast<int32_t>(last_key(kChunkBits, sum, reaches));
}

// ---- in order of logits, with the whole row before us ----

__device__ int32_t draw_from_row(const Row& row, const Weight* sums, int chunks) {
  const SamplingRow& sampling = row.sampling;
  const auto weight = [&](float logit) { return weight_of(logit, row.top.logit, sampling.temperature); };
  uint64_t cut = 0;
  Weight total = 0;
  if (has_top_k(sampling, row.vocab_size)) {
    const auto count = [&](uint64_t order) { return row_sum(row, order, [](float) { return Weight{1}; }); };
    cut = last_key(kOrderBits, count, [&](Weight n) { return n >= static_cast<Weight>(sampling.top_k); });
    total = row_sum(row, cut, weight);
  } else {
    for (int i = 0; i < chunks; ++i) total += sums[i];
  }
  if (sampling.top_p < 1) {
    const double share = static_cast<double>(sampling.top_p) * static_cast<double>(total);
    const auto sum = [&](uint64_t order) { return row_sum(row, max(order, cut), weight); };
    cut = max(cut, last_key(kOrderBits, sum, [&](Weight n) { return static_cast<double>(n) >= share; }));
  }
  const auto threshold = static_cast<Weight>(sampling.min_p * kWeightOne);
  const auto sum = [&](uint64_t order) {
    return row_sum(row, max(order, cut), [&](float logit) {
      const Weight thread_sum = weight(logit);
      return thread_sum >= threshold ? thread_sum : Weight{0};
    });
  };
  const double target = row.u * static_cast<double>(sum(cut));
  const auto reaches = [&](Weight n) { return static_cast<double>(n) > target; };
  if (!reaches(sum(cut))) return row.top.token;
  return token_of(last_key(kOrderBits, sum, reaches));
}

// ---- in order of logits, from the most likely tokens alone ----

// Fills the list with at least the `min_candidates` most likely tokens: that many sets hold a token no less likely than
// the least likely of the sets' best, so nothing below it is wanted. The list's count exceeds kListSize where it has no
// room, and nothing in it is valid then.
__device__ void collect(const Row& row, const uint32_t* sets, int set_count, int min_candidates, CandidateList& list) {
  uint64_t bound = 0;
  if (min_candidates < set_count && row.vocab_size > kListSize) {
    const auto count = [&](uint64_t key) {
      Weight thread_sum = 0;
      for (int i = threadIdx.x; i < set_count; i += kThreads) thread_sum += sets[i] >= key ? 1 : 0;
      return block_sum<kThreads>(thread_sum);
    };
    bound = last_key(32, count, [&](Weight n) { return n >= static_cast<Weight>(min_candidates); });
  }
  if (threadIdx.x == 0) list.count = 0;
  __syncthreads();
  constexpr int kNeighbours = kSetTokens * kChunkThreads / kChunkTokens;
  for (int set = threadIdx.x; set < set_count; set += kThreads) {
    if (sets[set] < bound) continue;
    const int first = set / kChunkSets * kChunkTokens + set % kChunkSets * kNeighbours;
    for (int i = 0; i < kSetTokens; ++i) {
      const int token = first + i / kNeighbours * kChunkThreads + i % kNeighbours;
      if (token >= row.vocab_size) break;
      const float logit = row.logits[token];
      if (key_of(logit) < bound) continue;
      const int order = atomicAdd(&list.count, 1);
      if (order >= kListSize) continue;
      list.order_keys[order] = order_key(logit, token);
      const double exponent = (static_cast<double>(logit) - row.top.logit) / row.sampling.temperature;
      list.weights[order] = static_cast<Weight>(exp(exponent) * static_cast<double>(kWeightOne));
    }
  }
  __syncthreads();
}

// Whether the list suffices to draw from; the token then is in `token`.
__device__ bool draw_from_list(const Row& row, const CandidateList& list, const Weight* sums, int chunks,
                               int32_t* token) {
  constexpr int kPerThread = kListSize / kThreads;
  if (list.count > kListSize) return false;
  const SamplingRow& sampling = row.sampling;
  // Of each candidate: how many are before it, and their weight.
  int rank[kPerThread] = {};
  Weight before[kPerThread] = {};
  uint64_t order_keys[kPerThread];
  Weight weights[kPerThread];
#pragma unroll
  for (int candidate = 0; candidate < kPerThread; ++candidate) {
    const int i = candidate * kThreads + threadIdx.x;
    order_keys[candidate] = i < list.count ? list.order_keys[i] : ~uint64_t{0};
    weights[candidate] = i < list.count ? list.weights[i] : 0;
  }
  for (int i = 0; i < list.count; ++i) {
    const uint64_t order = list.order_keys[i];
    const Weight weight = list.weights[i];
#pragma unroll
    for (int candidate = 0; candidate < kPerThread; ++candidate) {
      if (order > order_keys[candidate]) {
        ++rank[candidate];
        before[candidate] += weight;
      }
    }
  }
  const bool limits_count = has_top_k(sampling, row.vocab_size);
  const auto sum_of = [&](auto&& is_in) {
    Weight sum = 0;
#pragma unroll
    for (int candidate = 0; candidate < kPerThread; ++candidate) sum += is_in(candidate) ? weights[candidate] : 0;
    return block_sum<kThreads>(sum);
  };
  const auto is_in_top_k = [&](int candidate) { return !limits_count || rank[candidate] < sampling.top_k; };
  Weight total = sum_of(is_in_top_k);
  double share = static_cast<double>(sampling.top_p) * static_cast<double>(total);
  if (!limits_count) {
    const Weight listed = total;
    total = 0;
    for (int i = 0; i < chunks; ++i) total += sums[i];
    share = static_cast<double>(sampling.top_p) * static_cast<double>(total);
    if (static_cast<double>(listed) < share && list.count < row.vocab_size) return false;
  }
  const auto threshold = static_cast<Weight>(sampling.min_p * kWeightOne);
  const auto is_kept = [&](int candidate) {
    const bool is_in_nucleus = sampling.top_p >= 1 || static_cast<double>(before[candidate]) < share;
    return is_in_top_k(candidate) && is_in_nucleus && weights[candidate] >= threshold;
  };
  const double target = row.u * static_cast<double>(sum_of(is_kept));
  if (threadIdx.x == 0) *token = row.top.token;
  __syncthreads();
#pragma unroll
  for (int candidate = 0; candidate < kPerThread; ++candidate) {
    const bool is_first = static_cast<double>(before[candidate]) <= target;
    if (is_kept(candidate) && is_first && static_cast<double>(before[candidate] + weights[candidate]) > target) {
      *token = token_of(order_keys[candidate]);
    }
  }
  __syncthreads();
  return true;
}

__global__ void __launch_bounds__(kThreads) draw_kernel(const SamplingRow* samplings, const float* logits,
                                                        int vocab_size, SamplingState state, int32_t* tokens) {
  await_previous();
  const size_t first_chunk = static_cast<size_t>(blockIdx.x) * state.chunks;
  const ChunkTop top = row_top<kThreads>(state.tops + first_chunk, state.chunks);
  const SamplingRow& sampling = samplings[blockIdx.x];
  __shared__ int32_t token;
  if (top.token < 0 || sampling.is_greedy || !isfinite(top.logit)) {
    if (threadIdx.x == 0) tokens[blockIdx.x] = max(top.token, -1);
    return;
  }
  const Row row{sampling, logits + static_cast<size_t>(blockIdx.x) * vocab_size, vocab_size, top,
                uniform(sampling.seed, sampling.draw)};
  const Weight* sums = state.sums + first_chunk;
  if (!is_ranked(sampling, vocab_size)) {
    const int32_t drawn = draw_by_id(row, sums, state.chunks);
    if (threadIdx.x == 0) tokens[blockIdx.x] = drawn;
    return;
  }
  auto& list = *dynamic_shared<CandidateList>();
  const int candidates = has_top_k(sampling, vocab_size) ? sampling.top_k : kNucleusTokens;
  collect(row, state.sets + first_chunk * kChunkSets, state.chunks * kChunkSets, candidates, list);
  int32_t drawn;
  if (draw_from_list(row, list, sums, state.chunks, &token)) {
    drawn = token;
  } else {
    drawn = draw_from_row(row, sums, state.chunks);
  }
  if (threadIdx.x == 0) tokens[blockIdx.x] = drawn;
}

// A thread a row.
__global__ void record_kernel(const SamplingRow* sampling, const int32_t* tokens, int rows) {
  await_previous();
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows || tokens[row] < 0) return;
  const int32_t token = tokens[row];
  if (sampling[row].seen != nullptr) {
    atomicOr(const_cast<uint32_t*>(sampling[row].seen) + token / 32, 1u << token % 32);
  }
  if (sampling[row].counts != nullptr) atomicAdd(const_cast<int32_t*>(sampling[row].counts) + token, 1);
}

// A thread a move.
__global__ void move_kernel(const int32_t* from, const TokenMove* moves, int count, int32_t* to) {
  await_previous();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[moves[i].to] = max(from[moves[i].from], 0);
}

constexpr int kFewThreads = 64;  // a token each

}  // namespace

void draw_tokens(cudaStream_t stream, const SamplingRow* sampling, const float* logits, int vocab_size, int rows,
                 const SamplingState& state, int32_t* tokens) {
  launch(draw_kernel, dim3(rows), dim3(kThreads), sizeof(CandidateList), stream, sampling, logits, vocab_size, state,
         tokens);
}

size_t sampling_scratch_bytes(int vocab_size, int rows) {
  const auto chunks = static_cast<size_t>(divide_up(vocab_size, kChunkTokens)) * rows;
  return scratch_bytes<ChunkTop>(chunks) + scratch_bytes<Weight>(chunks) + scratch_bytes<uint32_t>(chunks * kChunkSets);
}

void sample(cudaStream_t stream, Scratch scratch, const SamplingRow* sampling, float* logits, int vocab_size, int rows,
            int32_t* tokens) {
  if (rows == 0) return;
  const int chunks = divide_up(vocab_size, kChunkTokens);
  const size_t all = static_cast<size_t>(chunks) * rows;
  const SamplingState state{scratch.take<ChunkTop>(all), scratch.take<Weight>(all),
                            scratch.take<uint32_t>(all * kChunkSets), chunks};
  adjust_logits(stream, sampling, logits, vocab_size, rows, state);
  sum_weights(stream, sampling, logits, vocab_size, rows, state);
  draw_tokens(stream, sampling, logits, vocab_size, rows, state, tokens);
}

void record_tokens(cudaStream_t stream, const SamplingRow* sampling, const int32_t* tokens, int rows) {
  if (rows == 0) return;
  launch(record_kernel, dim3(divide_up(rows, kFewThreads)), dim3(kFewThreads), 0, stream, sampling, tokens, rows);
}

void move_tokens(cudaStream_t stream, const int32_t* from, const TokenMove* moves, int count, int32_t* to) {
  if (count == 0) return;
  launch(move_kernel, dim3(divide_up(count, kFewThreads)), dim3(kFewThreads), 0, stream, from, moves, count, to);
}

}  // namespace turbomind::cuda
