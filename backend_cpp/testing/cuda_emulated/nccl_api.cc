// NCCL on the CPU: ranks are threads, and what they sum lies in memory that all of them reach.
#include "kernels/cuda/comm/nccl_api.h"

#include <memory>

#include "device/host_exchange.h"

struct ncclComm {
  std::shared_ptr<turbomind::HostExchange> exchange;
  int rank;
};

namespace turbomind::cuda {

namespace {

constexpr int kInvalidArgument = 4;

int comm_init_all(ncclComm** comms, int count, const int* devices) {
  const auto exchange = std::make_shared<HostExchange>(count);
  for (int rank = 0; rank < count; ++rank) {
    if (devices[rank] != rank) return kInvalidArgument;
    comms[rank] = new ncclComm{exchange, rank};
  }
  return NcclApi::kSuccess;
}

int all_reduce(const void* from, void* to, size_t count, int type, int operation, ncclComm* comm, cudaStream_t) {
  if (from != to || type != NcclApi::kFloat32 || operation != NcclApi::kSum) return kInvalidArgument;
  int device = -1;
  cudaGetDevice(&device);
  if (device != comm->rank) return kInvalidArgument;
  emulated::submit([exchange = comm->exchange, rank = comm->rank, to, count] {
    exchange->all_reduce(rank, static_cast<float*>(to), count);
  });
  return NcclApi::kSuccess;
}

int comm_destroy(ncclComm* comm) {
  delete comm;
  return NcclApi::kSuccess;
}

int comm_abort(ncclComm* comm) {
  comm->exchange->fail();
  return comm_destroy(comm);
}

const char* error_text(int) {
  return "invalid argument";
}

}  // namespace

const NcclApi& nccl_api() {
  static const NcclApi api{comm_init_all, all_reduce, comm_destroy, comm_abort, error_text};
  return api;
}

}  // namespace turbomind::cuda
