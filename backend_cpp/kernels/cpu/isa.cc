#include "kernels/cpu/isa.h"

#include <atomic>
#include <cstdlib>

#include "base/error.h"

namespace turbomind {

namespace {

std::vector<const KernelTable*> usable_tables() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512vnni")) {
      if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
        tables.push_back(&avx512bf16::kTable);
      tables.push_back(&avx512vnni::kTable);
    }
    tables.push_back(&avx512::kTable);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    tables.push_back(&avx2::kTable);
#endif
  tables.push_back(&scalar::kTable);
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
    const char* wanted = std::getenv("LMDEPLOY_CPU_ISA");
    return wanted != nullptr && *wanted != '\0' ? table_named(wanted) : usable_tables().front();
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
