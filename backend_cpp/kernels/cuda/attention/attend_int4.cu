#include "kernels/cuda/attention/attend_decode.cuh"
#include "kernels/cuda/attention/attend_tile.cuh"

namespace turbomind::cuda {

void attend_int4(cudaStream_t stream, const AttentionTask& task, bool is_split_keys) {
  attend_tiles<CacheType::kInt4>(stream, task, is_split_keys);
}

void decode_int4(cudaStream_t stream, const AttentionTask& task, int warps) {
  decode_cache<CacheType::kInt4>(stream, task, warps);
}

}  // namespace turbomind::cuda
