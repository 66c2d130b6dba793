#include "kernels/cuda/comm/nccl_api.h"

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <type_traits>

#if __has_include(<nccl.h>)
#include <nccl.h>
#define TM_HAS_NCCL_HEADER
#endif

namespace turbomind::cuda {

namespace {

#ifdef TM_HAS_NCCL_HEADER
// Declarations of nccl_api.h agree with the library's own header, whose enumerations are ints.
template <class T>
using AsInt = std::conditional_t<std::is_enum_v<T> && sizeof(T) == sizeof(int), int, T>;
template <class Function>
struct Declared;
template <class Result, class... Arguments>
struct Declared<Result (*)(Arguments...)> {
  using Type = AsInt<Result> (*)(AsInt<Arguments>...);
};
template <class Member, class Library>
constexpr bool kAgrees = std::is_same_v<Member, typename Declared<Library>::Type>;

static_assert(kAgrees<decltype(NcclApi::comm_init_all), decltype(&ncclCommInitAll)>);
static_assert(kAgrees<decltype(NcclApi::all_reduce), decltype(&ncclAllReduce)>);
static_assert(kAgrees<decltype(NcclApi::all_gather), decltype(&ncclAllGather)>);
static_assert(kAgrees<decltype(NcclApi::comm_destroy), decltype(&ncclCommDestroy)>);
static_assert(kAgrees<decltype(NcclApi::comm_abort), decltype(&ncclCommAbort)>);
static_assert(kAgrees<decltype(NcclApi::error_text), decltype(&ncclGetErrorString)>);
static_assert(NcclApi::kSuccess == ncclSuccess && NcclApi::kFloat32 == ncclFloat32 && NcclApi::kSum == ncclSum);
#endif

constexpr const char* kLibrary = "libnccl.so.2";
constexpr const char* kAdvice =
    ": install it (libnccl2, or the wheel nvidia-nccl-cu12 or nvidia-nccl-cu13 with its folder lib on "
    "LD_LIBRARY_PATH), or leave tp at 1";
constexpr int kMinVersion = 20906;  // the first whose calls can be captured in graphs

std::string version_text(int version) {
  const int major = version / (version < 10000 ? 1000 : 10000);  // from 2.9 on numbers have a digit more
  return std::to_string(major) + "." + std::to_string(version / 100 % (version < 10000 ? 10 : 100)) + "." +
         std::to_string(version % 100);
}

// `found` says what is there in its place, and why that does not do.
[[noreturn]] void reject(const std::string& found) {
  throw Error(ErrorCode::kUnavailable,
              "tp over several GPUs needs NCCL " + version_text(kMinVersion) + " or later, but " + found + kAdvice);
}

void* open_library() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const std::string reason = dlerror();
  const bool is_missing = reason.starts_with(std::string(kLibrary) + ": cannot open shared object file");
  reject(is_missing ? std::string(kLibrary) + " was not found"
                    : std::string(kLibrary) + " cannot be loaded (" + reason + ")");
}

// Which of several libraries the machine may have.
std::string path_of(void* library) {
  link_map* loaded = nullptr;
  const bool is_known = dlinfo(library, RTLD_DI_LINKMAP, &loaded) == 0 && loaded->l_name[0] != '\0';
  return is_known ? loaded->l_name : kLibrary;
}

NcclApi load() {
  void* library = open_library();
  int (*get_version)(int* version) = nullptr;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  NcclApi api{};
  find(get_version, "ncclGetVersion");
  find(api.comm_init_all, "ncclCommInitAll");
  find(api.all_reduce, "ncclAllReduce");
  find(api.all_gather, "ncclAllGather");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.comm_abort, "ncclCommAbort");
  find(api.error_text, "ncclGetErrorString");
  int version = 0;
  const bool is_known = get_version != nullptr && get_version(&version) == NcclApi::kSuccess;
  if (!missing.empty() || !is_known || version < kMinVersion) {
    reject(path_of(library) + " is " + (is_known ? "NCCL " + version_text(version) : "of an unknown version") +
           (missing.empty() ? "" : " and lacks " + missing));
  }
  api.version = version_text(version);
  return api;
}

}  // namespace

const NcclApi& nccl_api() {
  static const NcclApi api = load();
  return api;
}

}  // namespace turbomind::cuda
