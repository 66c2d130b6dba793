#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/attention/attention_tile.cuh"

namespace turbomind::cuda {

template void attention_tiles<CacheType::kInt4>(cudaStream_t, const AttentionTask&, bool);
template void decode_cache<CacheType::kInt4>(cudaStream_t, const AttentionTask&, int);

}  // namespace turbomind::cuda
