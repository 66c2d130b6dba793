#include "kernels/cuda/latent/latent.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/quantize/round_rows.h"

namespace turbomind::cuda {

namespace {

size_t bytes_of(const LatentPiece& piece) {
  const size_t packed = static_cast<size_t>(piece.rows) * piece.heads;
  return scratch_bytes<uint16_t>(packed * kLatentKey) + scratch_bytes<uint16_t>(packed * kLatentRank) +
         scratch_bytes<uint16_t>(piece.partial_rows() * kLatentRank) + scratch_bytes<float>(piece.partial_rows());
}

}  // namespace

bool is_latent_attention(const AttentionParams& params) {
  const CacheLayout& layout = params.layout;
  return layout.type == CacheType::kBFloat16 && layout.num_kv_heads == 1 && layout.key_dim == kLatentKey &&
         layout.value_dim == kLatentRank && has_latent_tiles(params.num_heads) && params.set.use == SpanUse::kTokens &&
         params.softcap == 0 && params.alibi_slopes == nullptr && params.window <= 0 &&
         params.distance_biases == nullptr && params.kv_lens == nullptr && params.sinks == nullptr &&
         layout.block_bytes() / sizeof(uint16_t) <= std::numeric_limits<uint32_t>::max();
}

size_t latent_scratch_bytes(const std::vector<LatentPiece>& pieces) {
  size_t bytes = 0;
  for (const LatentPiece& piece : pieces) bytes = std::max(bytes, bytes_of(piece));
  return bytes;
}

void latent_attention(cudaStream_t stream, Scratch memory, const LatentKernel& kernel,
                      const std::vector<LatentPiece>& pieces, const int32_t* plan, const AttentionParams& params,
                      const int32_t* blocks, const HeadsView& q, float* out) {
  const CacheLayout& layout = params.layout;
  LatentCall call;
  call.keys = reinterpret_cast<const uint16_t*>(params.pool + layout.key_offset(params.layer, 0));
  call.block_stride = layout.block_bytes() / sizeof(uint16_t);
  call.block_len = layout.block_len;
  call.heads = params.num_heads;
  call.blocks = blocks;
  for (const LatentPiece& piece : pieces) {
    Scratch left = memory;
    const int rows = std::min(piece.rows, q.rows - piece.first_token);
    const size_t packed = static_cast<size_t>(piece.rows) * piece.heads;
    auto* queries = left.take<uint16_t>(packed * kLatentKey);
    call.out = left.take<uint16_t>(packed * kLatentRank);
    call.partial_out = left.take<uint16_t>(piece.partial_rows() * kLatentRank);
    call.partial_lse = left.take<float>(piece.partial_rows());
    call.queries = queries;
    call.plan = view_latent_plan(piece, plan);
    round_rows(stream, {q.head(piece.first_token, 0), rows, q.row_stride, q.heads, q.head_stride, kLatentKey, nullptr},
               WeightFormat::kBFloat16, ChunkOrder::kSequential, kLatentKey, queries);
    kernel.run(stream, call);
    const int width = piece.heads * kLatentRank;
    upcast_rows(stream, call.out, rows, width, filled_rows(plan), out + static_cast<size_t>(piece.first_token) * width);
    plan += piece.plan_size();
  }
}

}  // namespace turbomind::cuda
