// What a process that runs a model in Python needs of the engine: the channel, and the kernels of the CPU.
#pragma once

#include <pybind11/pybind11.h>

namespace turbomind {

void bind_worker(pybind11::module_& m);
void bind_kernels(pybind11::module_& m);
void bind_coded(pybind11::module_& m);

}  // namespace turbomind
