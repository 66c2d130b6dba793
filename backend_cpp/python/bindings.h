// Bindings that the compiled modules consist of.
#pragma once

#include <pybind11/pybind11.h>

namespace turbomind {

// Adds Engine and EngineUnavailable, and translates Error.
void bind_engine(pybind11::module_& m);

void bind_worker(pybind11::module_& m);
void bind_kernels(pybind11::module_& m);
void bind_quantized(pybind11::module_& m);

}  // namespace turbomind
