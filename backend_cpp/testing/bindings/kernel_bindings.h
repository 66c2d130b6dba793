// Kernels on plain addresses, for tests and the Python runtime (lmdeploy/turbomind/ops.py checks shapes and types).
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/thread_pool.h"

namespace turbomind {

void bind_kernels(pybind11::module_& m);
void bind_moe_kernels(pybind11::module_& m);

// The threads of every kernel called from Python.
ThreadPool& shared_pool();

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace turbomind
