#include "kernels/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace turbomind {

namespace {

#if defined(__x86_64__)
#if defined(__linux__)
// asm/prctl.h and the component number of tile data (Intel SDM, volume 1, chapter 13.1); older headers lack both.
constexpr long kRequestPermission = 0x1023;
constexpr long kTileData = 18;

bool is_granted() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-int8") || !__builtin_cpu_supports("amx-bf16"))
    return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool is_granted() {
  return false;
}
#endif

// Whether this processor multiplies tiles of int8 and bfloat16 and the operating system lets this process use them.
// Linux wants to be asked once a process, since a thread's state grows by 8 KiB (arch_prctl(2), ARCH_REQ_XCOMP_PERM);
// it says no where a thread's signal stack is too small for that.
bool can_use_tiles() {
  static const bool granted = is_granted();
  return granted;
}

// Products of bytes in 256 bits, which processors without AVX-512 may have (CPUID leaf 7, subleaf 1, EAX bit 4).
bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1u) != 0;
}
#endif

std::vector<const KernelTable*> usable_tables() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) {
    if (__builtin_cpu_supports("avx512vnni")) {
      if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi")) {
        static const bool has_tiles = can_use_tiles() && has_same_gemms(amx::kTable, amx_emulated::kTable);
        if (has_tiles) tables.push_back(&amx::kTable);
        tables.push_back(&avx512bf16::kTable);
      }
      tables.push_back(&avx512vnni::kTable);
    }
    tables.push_back(&avx512::kTable);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    if (has_avx_vnni()) tables.push_back(&avxvnni::kTable);
    tables.push_back(&avx2::kTable);
  }
#elif defined(__aarch64__)
#if defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
    if ((getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0) tables.push_back(&i8mm::kTable);
    tables.push_back(&dotprod::kTable);
  }
#endif
  tables.push_back(&neon::kTable);
#endif
  tables.push_back(&scalar::kTable);
#if defined(__x86_64__)
  if (has_avx512) tables.push_back(&amx_emulated::kTable);
#endif
  return tables;
}

const KernelTable* table_named(const std::string& name) {
  for (const KernelTable* table : usable_tables()) {
    if (name == table->name) return table;
  }
  std::string known;
  for (const std::string& isa : supported_isas()) known += (known.empty() ? "" : ", ") + isa;
  throw invalid_argument("CPU instruction set must be one of " + known + " on this machine, got " + name);
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table = [] {
    const char* requested = std::getenv("LMDEPLOY_CPU_ISA");
    return requested != nullptr && *requested != '\0' ? table_named(requested) : usable_tables().front();
  }();
  return table;
}

}  // namespace

const KernelTable& kernels() {
  return *current().load(std::memory_order_relaxed);
}

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : usable_tables()) names.emplace_back(table->name);
  return names;
}

void select_isa(const std::string& name) {
  current() = table_named(name);
}

}  // namespace turbomind
