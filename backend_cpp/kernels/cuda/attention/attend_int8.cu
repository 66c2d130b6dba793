#include "kernels/cuda/attention/attend_decode.cuh"
#include "kernels/cuda/attention/attend_tile.cuh"

namespace turbomind::cuda {

void attend_int8(cudaStream_t stream, const AttentionTask& task, bool is_split_keys) {
  attend_tiles<CacheType::kInt8>(stream, task, is_split_keys);
}

void decode_int8(cudaStream_t stream, const AttentionTask& task, int warps) {
  decode_cache<CacheType::kInt8>(stream, task, warps);
}

}  // namespace turbomind::cuda
