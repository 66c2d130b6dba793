#include "kernels/cuda/attention/attend_tile.cuh"

namespace turbomind::cuda {

void attend_bfloat16(cudaStream_t stream, const AttentionTask& task, bool is_split_keys) {
  attend_tiles<CacheType::kBFloat16>(stream, task, is_split_keys);
}

}  // namespace turbomind::cuda
