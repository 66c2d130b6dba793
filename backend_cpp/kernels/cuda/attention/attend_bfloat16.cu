#include "kernels/cuda/attention/attend_decode.cuh"
#include "kernels/cuda/attention/attend_tile.cuh"

namespace turbomind::cuda {

void attend_bfloat16(cudaStream_t stream, const AttentionTask& task, bool is_split_keys) {
  attend_tiles<CacheType::kBFloat16>(stream, task, is_split_keys);
}

void decode_bfloat16(cudaStream_t stream, const AttentionTask& task, int warps) {
  decode_cache<CacheType::kBFloat16>(stream, task, warps);
}

}  // namespace turbomind::cuda
