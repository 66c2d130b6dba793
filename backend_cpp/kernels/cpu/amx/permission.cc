#include "kernels/cpu/amx/permission.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace turbomind {

namespace {

#if defined(__x86_64__) && defined(__linux__)
// asm/prctl.h and the component number of tile data (Intel SDM, volume 1, chapter 13.1); older headers lack both.
constexpr long kRequestPermission = 0x1023;
constexpr long kTileData = 18;

bool ask() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-int8") || !__builtin_cpu_supports("amx-bf16"))
    return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool ask() {
  return false;
}
#endif

}  // namespace

bool can_use_tiles() {
  static const bool granted = ask();
  return granted;
}

}  // namespace turbomind
