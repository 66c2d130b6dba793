#include "kernels/cuda/comm/nccl_api.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

#if __has_include(<nccl.h>)
#include <nccl.h>
#define TM_HAS_NCCL_HEADER
#endif

namespace turbomind::cuda {

namespace {

#ifdef TM_HAS_NCCL_HEADER
// What nccl_api.h declares is what the library's own header does, whose enumerations are ints.
template <class T>
using AsInt = std::conditional_t<std::is_enum_v<T> && sizeof(T) == sizeof(int), int, T>;
template <class Function>
struct Declared;
template <class Result, class... Arguments>
struct Declared<Result (*)(Arguments...)> {
  using Type = AsInt<Result> (*)(AsInt<Arguments>...);
};
template <class Ours, class Theirs>
constexpr bool kAgrees = std::is_same_v<Ours, typename Declared<Theirs>::Type>;

static_assert(kAgrees<decltype(NcclApi::comm_init_all), decltype(&ncclCommInitAll)>);
static_assert(kAgrees<decltype(NcclApi::all_reduce), decltype(&ncclAllReduce)>);
static_assert(kAgrees<decltype(NcclApi::all_gather), decltype(&ncclAllGather)>);
static_assert(kAgrees<decltype(NcclApi::comm_destroy), decltype(&ncclCommDestroy)>);
static_assert(kAgrees<decltype(NcclApi::comm_abort), decltype(&ncclCommAbort)>);
static_assert(kAgrees<decltype(NcclApi::error_text), decltype(&ncclGetErrorString)>);
static_assert(NcclApi::kSuccess == ncclSuccess && NcclApi::kFloat32 == ncclFloat32 && NcclApi::kSum == ncclSum);
#endif

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
