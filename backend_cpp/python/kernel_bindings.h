// Kernels on plain addresses, for tests and the Python runtime (lmdeploy/turbomind/ops.py checks shapes and types).
#pragma once

#include <pybind11/pybind11.h>

namespace turbomind {

void bind_kernels(pybind11::module_& m);

}  // namespace turbomind
