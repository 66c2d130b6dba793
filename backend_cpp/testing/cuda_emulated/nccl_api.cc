// NCCL on the CPU: ranks are threads, and what they sum is in memory that all of them reach.
#include "kernels/cuda/comm/nccl_api.h"

#include <chrono>
#include <memory>
#include <thread>

#include "device/host_exchange.h"
#include "testing/cuda_emulated/faults.h"

struct ncclComm {
  std::shared_ptr<turbomind::HostExchange> exchange;
  int rank;
  std::shared_ptr<const int> use = std::make_shared<const int>(0);  // each call that may run yet has one
};

namespace turbomind::cuda {

namespace {

constexpr int kUnhandledCudaError = 1;
constexpr int kInvalidArgument = 4;
constexpr auto kPause = std::chrono::milliseconds(1);

int comm_init_all(ncclComm** comms, int count, const int* devices) {
  if (emulated::begin_call("ncclCommInitAll") != cudaSuccess) return kUnhandledCudaError;
  const auto exchange = std::make_shared<HostExchange>(count);
  for (int rank = 0; rank < count; ++rank) {
    if (devices[rank] != rank) return kInvalidArgument;
    comms[rank] = new ncclComm{exchange, rank, std::make_shared<const int>(0)};
  }
  return NcclApi::kSuccess;
}

bool is_on_comm_device(const ncclComm* comm) {
  int device = -1;
  cudaGetDevice(&device);
  return device == comm->rank;
}

int all_reduce(const void* from, void* to, size_t count, int type, int operation, ncclComm* comm, cudaStream_t) {
  if (from != to || type != NcclApi::kFloat32 || operation != NcclApi::kSum) return kInvalidArgument;
  if (!is_on_comm_device(comm)) return kInvalidArgument;
  emulated::count_call("ncclAllReduce");
  emulated::submit([exchange = comm->exchange, rank = comm->rank, use = comm->use, to, count] {
    exchange->all_reduce(rank, static_cast<float*>(to), count);
  });
  return NcclApi::kSuccess;
}

int all_gather(const void* from, void* to, size_t count, int type, ncclComm* comm, cudaStream_t) {
  auto* x = static_cast<float*>(to);
  if (from != x + static_cast<size_t>(comm->rank) * count || type != NcclApi::kFloat32) return kInvalidArgument;
  if (!is_on_comm_device(comm)) return kInvalidArgument;
  emulated::count_call("ncclAllGather");
  emulated::submit([exchange = comm->exchange, rank = comm->rank, use = comm->use, x, count] {
    exchange->all_gather(rank, x, count);
  });
  return NcclApi::kSuccess;
}

int comm_destroy(ncclComm* comm) {
  delete comm;
  return NcclApi::kSuccess;
}

// As NCCL does, waits for graphs that its calls were captured in.
int comm_abort(ncclComm* comm) {
  comm->exchange->fail();
  while (comm->use.use_count() > 1) std::this_thread::sleep_for(kPause);
  return comm_destroy(comm);
}

const char* error_text(int result) {
  return result == kUnhandledCudaError ? "unhandled cuda error" : "invalid argument";
}

}  // namespace

const NcclApi& nccl_api() {
  static const NcclApi api{comm_init_all, all_reduce, all_gather, comm_destroy, comm_abort, error_text, "2.32.3"};
  return api;
}

}  // namespace turbomind::cuda
