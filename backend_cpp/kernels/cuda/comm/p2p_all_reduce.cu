// Barrier of ranks
//
// Block b of a launch has a slice of the elements, which only depends on their number, and meets the blocks b of the
// same call on the other GPUs; other blocks are nothing to it. It copies its slice into its rank's memory, reports
// every rank that it has come to call n (its own count, in device memory: captured graphs continue counting), waits
// until all ranks' blocks b have, and reads their slices.
//
// Why what is read is whole: a thread reports with release at the scope of the system, after a barrier of its block,
// and waits with acquire, before another one. Both orders carry over barriers, so all that the other block wrote is
// seen.
//
// Why nothing is overwritten too early: parts of calls alternate between two places, and of blocks they are apart. A
// block that writes the place of call n has met in call n - 1 with the other ranks' blocks b. These had come to call
// n - 1, in a launch that began after theirs of call n - 2, the last to read that place, had ended. One place would not
// do: a rank that continues to call n + 1 may overwrite what another still reads in call n.
//
// Why nobody waits forever: a block waits for those with its number only, whose launches come in the same order on all
// GPUs, and all blocks fit on a GPU at once (8 multiprocessors are enough). Where a rank fails, the host says so, and
// those that wait for it look there, too.
#include <atomic>
#include <cstring>

#include "kernels/cuda/comm/p2p_all_reduce.h"

namespace turbomind::cuda {

namespace {

constexpr int kMaxRanks = PeerView::kMaxRanks;
constexpr int kThreads = 256;
constexpr int kMaxBlocks = 32;
constexpr int kSlice = P2pAllReduce::kMaxCount / kMaxBlocks;  // most floats of a block
constexpr unsigned kPollsOfHost = 256;                        // each takes a look over the bus

// Words of a rank's memory, after its parts.
constexpr size_t kArrivals = 2 * P2pAllReduce::kMaxCount;
constexpr size_t kCalls = kArrivals + size_t{kMaxBlocks} * kMaxRanks;
constexpr size_t kWords = kCalls + kMaxBlocks;

// Returns when block b of every rank has come to this call, or false: somebody has given up.
__device__ bool peer_barrier(const PeerView& peers, uint32_t call) {
  __syncthreads();
  const int other = static_cast<int>(threadIdx.x);
  bool is_stopped = false;
  if (other < peers.ranks) {
    const size_t row = size_t{blockIdx.x} * kMaxRanks;
    store_release_system(&peers.arrivals[other][row + peers.rank], call);
    const uint32_t* arrival = &peers.arrivals[peers.rank][row + other];
    // As a difference: counts begin again after 2^32 calls.
    for (unsigned polls = 1; static_cast<int32_t>(poll_acquire_system(arrival) - call) < 0; ++polls) {
      is_stopped = polls % kPollsOfHost == 0 && poll_acquire_system(peers.is_stopped) != 0;
      if (is_stopped) break;
    }
  }
  return __syncthreads_or(is_stopped) == 0;
}

__device__ float plus(float a, float b) {
  return a + b;
}

__device__ float4 plus(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// x [count] becomes the sum over ranks, or x [ranks, count] what they have filled. Block b has the floats from
// b * slice on; Vector is what a thread moves of them, and must divide `count` and the place of x.
template <class Vector, bool kGathers>
__global__ void __launch_bounds__(kThreads, 4) exchange_kernel(PeerView peers, float* x, int count, int slice) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const auto vectors = [](float* floats) { return reinterpret_cast<Vector*>(floats); };
  await_previous();
  const uint32_t call = peers.calls[blockIdx.x] + 1;
  const size_t offset = (call % 2 * kMaxBlocks + blockIdx.x) * kSlice;
  const int first = static_cast<int>(blockIdx.x) * slice;
  const int size = min(slice, count - first) / kWidth;
  const auto mine = [&](int rank) { return vectors(x + (kGathers ? size_t(rank) * count : 0) + first); };

  Vector* shared_part = vectors(peers.parts[peers.rank] + offset);
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) shared_part[i] = mine(peers.rank)[i];
  if (!peer_barrier(peers, call)) return;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    Vector parts[kMaxRanks];
#pragma unroll
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      parts[rank] = rank < peers.ranks ? vectors(peers.parts[rank] + offset)[i] : Vector{};
    }
    if constexpr (kGathers) {
#pragma unroll
      for (int rank = 0; rank < kMaxRanks; ++rank) {
        if (rank < peers.ranks) mine(rank)[i] = parts[rank];
      }
    } else {
      Vector sum = parts[0];
#pragma unroll
      for (int rank = 1; rank < kMaxRanks; ++rank) {
        if (rank < peers.ranks) sum = plus(sum, parts[rank]);
      }
      mine(0)[i] = sum;
    }
  }
  if (threadIdx.x == 0) peers.calls[blockIdx.x] = call;
}

// The slices are the same on all ranks, whatever the places of their x.
template <bool kGathers>
void exchange(const PeerView& peers, float* x, size_t elements, cudaStream_t stream) {
  const int count = static_cast<int>(elements);
  const int needed = min(divide_up(count, 4 * kThreads), kMaxBlocks);
  const int slice = divide_up(divide_up(count, needed), 4) * 4;
  const auto blocks = static_cast<unsigned>(divide_up(count, slice));
  const bool has_vectors = count % 4 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
  const auto kernel = has_vectors ? &exchange_kernel<float4, kGathers> : &exchange_kernel<float, kGathers>;
  launch_cooperative(kernel, blocks, kThreads, stream, peers, x, count, slice);
}

// The current device, again when this ends.
struct KeptDevice {
  int device = 0;
  KeptDevice() { check(cudaGetDevice(&device), "asking for the current device"); }
  ~KeptDevice() { cudaSetDevice(device); }
};

AlignedBuffer pinned_word() {
  void* word = nullptr;
  check(cudaMallocHost(&word, sizeof(uint32_t)), "allocating pinned memory");
  std::memset(word, 0, sizeof(uint32_t));
  return {word, sizeof(uint32_t), [](void* memory, size_t) { cudaFreeHost(memory); }};
}

// Words that nobody has written yet.
AlignedBuffer empty_words() {
  AlignedBuffer words = allocate(kWords * sizeof(uint32_t));
  const std::vector<uint32_t> zeros(kWords);
  check(cudaMemcpy(words.as<void>(), zeros.data(), words.size(), cudaMemcpyHostToDevice), "copying to the GPU");
  return words;
}

void reach(int other) {
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // the next call is not to report this one
  } else {
    check(error, "letting a GPU reach another's memory");
  }
}

}  // namespace

bool P2pAllReduce::is_possible(int ranks) {
  if (ranks < 2 || ranks > kMaxRanks) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int other = 0; other < ranks; ++other) {
      int can = 1;
      if (other != rank) check(cudaDeviceCanAccessPeer(&can, rank, other), "asking whether a GPU reaches another");
      if (can == 0) return false;
    }
  }
  return true;
}

P2pAllReduce::P2pAllReduce(int ranks) : is_stopped_(pinned_word()) {
  const KeptDevice kept;
  PeerView view{};
  view.ranks = ranks;
  view.is_stopped = is_stopped_.as<uint32_t>();
  for (int rank = 0; rank < ranks; ++rank) {
    check(cudaSetDevice(rank), "choosing a GPU");
    for (int other = 0; other < ranks; ++other) {
      if (other != rank) reach(other);
    }
    memory_.push_back(empty_words());
    view.parts[rank] = memory_.back().as<float>();
    view.arrivals[rank] = memory_.back().as<uint32_t>() + kArrivals;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    view.rank = rank;
    view.calls = memory_[static_cast<size_t>(rank)].as<uint32_t>() + kCalls;
    views_.push_back(view);
  }
}

void P2pAllReduce::all_reduce(int rank, float* x, size_t count, cudaStream_t stream) {
  exchange<false>(views_[static_cast<size_t>(rank)], x, count, stream);
}

void P2pAllReduce::all_gather(int rank, float* x, size_t count, cudaStream_t stream) {
  exchange<true>(views_[static_cast<size_t>(rank)], x, count, stream);
}

void P2pAllReduce::stop() noexcept {
  std::atomic_ref<uint32_t>(*is_stopped_.as<uint32_t>()).store(1);
}

}  // namespace turbomind::cuda
