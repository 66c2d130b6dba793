#include "device/cuda/self_check.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/kernel_choice.h"
#include "base/thread_team.h"

namespace turbomind {

namespace {

using cuda::P2pAllReduce;

// Of sums one after the other, whose places alternate: with and without vectors, of one block and of all.
constexpr std::array<size_t, 5> kCounts = {1, 1001, P2pAllReduce::kMaxCount, 4096, 40'003};
// The largest sum takes less than a millisecond. GPUs that do not see each other's signals would wait forever.
constexpr auto kTimeout = std::chrono::seconds(20);

bool is_enabled() {
  const auto requested = requested_kernels("turbomind", "peers");
  return !requested || *requested == KernelSource::kNative;
}

struct DestroyStream {
  void operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
};

// Stops an exchange that does not end in time, unless this ends before.
class Deadline {
 public:
  explicit Deadline(P2pAllReduce& peers)
      : thread_([this, &peers, ended = ended_.get_future()] {
          if (ended.wait_for(kTimeout) == std::future_status::ready) return;
          is_over_ = true;
          peers.stop();
        }) {}
  ~Deadline() {
    ended_.set_value();
    thread_.join();
  }
  bool is_over() const { return is_over_; }

 private:
  std::atomic<bool> is_over_ = false;
  std::promise<void> ended_;
  std::thread thread_;
};

// Operands of a rank for all sums, and its results, one after the other.
using Numbers = std::vector<std::vector<float>>;  // by rank

Numbers sums_of(P2pAllReduce& peers, Numbers numbers) {
  struct Rank {
    std::unique_ptr<CUstream_st, DestroyStream> stream;
    AlignedBuffer memory;
  };
  std::vector<Rank> ranks(numbers.size());
  ThreadTeam team(static_cast<int>(numbers.size()), [&] { peers.stop(); });
  // Memory is had before any GPU waits for another.
  team.run([&](int rank) {
    Rank& state = ranks[static_cast<size_t>(rank)];
    const std::vector<float>& parts = numbers[static_cast<size_t>(rank)];
    cuda::check(cudaSetDevice(rank), "choosing a GPU");
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    state.stream.reset(stream);
    state.memory = cuda::allocate(parts.size() * sizeof(float));
    cuda::check(cudaMemcpy(state.memory.as<void>(), parts.data(), state.memory.size(), cudaMemcpyHostToDevice),
                "copying to the GPU");
  });
  const Deadline timeout(peers);
  team.run([&](int rank) {
    const Rank& state = ranks[static_cast<size_t>(rank)];
    auto* x = state.memory.as<float>();
    for (const size_t count : kCounts) {
      peers.all_reduce(rank, x, count, state.stream.get());
      x += count;
    }
    cuda::check(cudaStreamSynchronize(state.stream.get()), "waiting for the GPU");
    cuda::check(cudaMemcpy(numbers[static_cast<size_t>(rank)].data(), state.memory.as<void>(), state.memory.size(),
                           cudaMemcpyDeviceToHost),
                "copying from the GPU");
  });
  if (timeout.is_over()) throw internal_error("no response for 20 s");
  return numbers;
}

SelfCheck run(P2pAllReduce& peers, int ranks) {
  const size_t count = std::accumulate(kCounts.begin(), kCounts.end(), size_t{0});
  Numbers parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back(self_check_numbers(count, 1.0f, static_cast<unsigned>(rank)));
  const Numbers sums = sums_of(peers, parts);
  if (std::adjacent_find(sums.begin(), sums.end(), std::not_equal_to<>()) != sums.end()) {
    throw internal_error("the GPUs have different sums");
  }
  SelfCheck check;
  check.candidate = sums.front();
  check.native.resize(count);
  check.magnitude.resize(count);
  for (const std::vector<float>& part : parts) {
    for (size_t i = 0; i < count; ++i) {
      check.native[i] += part[i];
      check.magnitude[i] += std::abs(part[i]);
    }
  }
  check.relative = 0x1p-23f;
  return check;
}

}  // namespace

std::unique_ptr<P2pAllReduce> proven_peers(int ranks) {
  if (!is_enabled()) return nullptr;
  std::unique_ptr<P2pAllReduce> peers;
  const auto try_out = [&] {
    peers = std::make_unique<P2pAllReduce>(ranks);
    return run(*peers, ranks);
  };
  const std::string name = "a sum over " + std::to_string(ranks) + " GPUs in one launch";
  if (!P2pAllReduce::is_possible(ranks) || !passes_self_check(name, try_out, "the host's")) return nullptr;
  return peers;
}

}  // namespace turbomind
