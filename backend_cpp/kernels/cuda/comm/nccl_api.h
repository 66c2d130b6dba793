// The functions of NCCL that the project calls (nccl.h of NCCL 2, whose names and numbers these are; compared with that
// of 2.32.3, and by the compiler wherever a build finds the header). The library is loaded when a model is first spread
// over several GPUs: builds and machines with one need none.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cuda/device.h"

struct ncclComm;  // what one rank knows of its group

namespace turbomind::cuda {

struct NcclApi {
  static constexpr int kSuccess = 0;
  static constexpr int kFloat32 = 7;
  static constexpr int kSum = 0;

  // Makes a rank on each of `devices`; called once for all ranks.
  int (*comm_init_all)(ncclComm** comms, int count, const int* devices);
  // Each rank calls it with as many elements; may be captured in a graph.
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int operation, ncclComm* comm,
                    cudaStream_t stream);
  // The same: rank r's `count` elements become those from to + r count on, which is where they may be.
  int (*all_gather)(const void* from, void* to, size_t count, int type, ncclComm* comm, cudaStream_t stream);
  int (*comm_destroy)(ncclComm* comm);
  // Ends what the rank's device waits for, and frees the rank. From any thread.
  int (*comm_abort)(ncclComm* comm);
  const char* (*error_text)(int result);
  std::string version;  // of the library: "2.32.3"
};

// Throws Error (kUnavailable) that says which version is needed, and what is there in its place.
const NcclApi& nccl_api();

}  // namespace turbomind::cuda
