#include "kernels/cuda/comm/nccl_group.h"

#include <chrono>
#include <numeric>
#include <string>
#include <utility>

namespace turbomind::cuda {

namespace {

// A rank that is inside of NCCL for longer waits there for one that will not come.
constexpr auto kAbortDelay = std::chrono::seconds(1);

}  // namespace

NcclGroup::NcclGroup(int ranks) : api_(nccl_api()) {
  std::vector<int> devices(static_cast<size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<ncclComm*> comms(devices.size());
  if (const int result = api_.comm_init_all(comms.data(), ranks, devices.data()); result != NcclApi::kSuccess) {
    throw internal_error("connecting " + std::to_string(ranks) + " GPUs: NCCL " + api_.version + ": " +
                         api_.error_text(result) + "; NCCL_DEBUG=WARN in the environment says more");
  }
  for (ncclComm* comm : comms) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->comm = comm;
  }
}

NcclGroup::~NcclGroup() {
  for (std::thread& abort : aborts_) abort.join();
  for (const auto& rank : ranks_) {
    if (rank->comm != nullptr) api_.comm_destroy(rank->comm);
  }
}

template <class Call>
void NcclGroup::launch(int rank, const char* what, Call&& call) {
  Rank& rank_state = *ranks_[static_cast<size_t>(rank)];
  const std::lock_guard lock(rank_state.mu);
  check();
  const int result = call(rank_state.comm);
  check();
  if (result != NcclApi::kSuccess) throw internal_error(std::string(what) + ": NCCL: " + api_.error_text(result));
}

void NcclGroup::all_reduce(int rank, float* x, size_t count, cudaStream_t stream) {
  launch(rank, "summing over GPUs",
         [&](ncclComm* comm) { return api_.all_reduce(x, x, count, NcclApi::kFloat32, NcclApi::kSum, comm, stream); });
}

void NcclGroup::all_gather(int rank, float* x, size_t count, cudaStream_t stream) {
  launch(rank, "gathering from GPUs", [&](ncclComm* comm) {
    return api_.all_gather(x + static_cast<size_t>(rank) * count, x, count, NcclApi::kFloat32, comm, stream);
  });
}

void NcclGroup::fail() noexcept {
  if (has_failed_.exchange(true)) return;
  for (const auto& rank : ranks_) {
    aborts_.emplace_back([this, &rank] {
      const std::unique_lock lock(rank->mu, kAbortDelay);
      api_.comm_abort(std::exchange(rank->comm, nullptr));
    });
  }
}

void NcclGroup::check() const {
  if (has_failed_.load()) throw internal_error("another rank of the model has failed");
}

}  // namespace turbomind::cuda
