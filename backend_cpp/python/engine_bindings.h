// The engine for Python; shared by lmdeploy._turbomind and the modules that test devices.
#pragma once

#include <pybind11/pybind11.h>

namespace turbomind {

// Adds Engine and EngineUnavailable, and translates Error.
void bind_engine(pybind11::module_& m);

}  // namespace turbomind
