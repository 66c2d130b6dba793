#include "kernels/cuda/comm/nccl_api.h"

#include <dlfcn.h>

#include <string>

namespace turbomind::cuda {

namespace {

constexpr const char* kLibrary = "libnccl.so.2";

NcclApi load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(ErrorCode::kUnavailable,
                std::string("tp over several GPUs needs NCCL, but ") + kLibrary +
                    " was not found: install it (libnccl2, or the wheel nvidia-nccl-cu12 with its folder lib on "
                    "LD_LIBRARY_PATH), or leave tp at 1");
  }
  const auto find = [&](auto& function, const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr) {
      throw Error(ErrorCode::kUnavailable, std::string(kLibrary) + " has no function " + name + ": it is too old");
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  NcclApi api{};
  find(api.comm_init_all, "ncclCommInitAll");
  find(api.all_reduce, "ncclAllReduce");
  find(api.all_gather, "ncclAllGather");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.comm_abort, "ncclCommAbort");
  find(api.error_text, "ncclGetErrorString");
  return api;
}

}  // namespace

const NcclApi& nccl_api() {
  static const NcclApi api = load();
  return api;
}

}  // namespace turbomind::cuda
