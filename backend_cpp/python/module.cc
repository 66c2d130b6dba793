// lmdeploy._turbomind: the engine for Python. Wrapped by lmdeploy/turbomind/engine.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/cpu_share.h"
#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "python/engine_bindings.h"
#include "python/worker_bindings.h"

PYBIND11_MODULE(_turbomind, m) {
  turbomind::bind_engine(m);
  turbomind::bind_worker(m);
  turbomind::bind_kernels(m);
  turbomind::bind_coded(m);
  m.def("available_cpu_count", &turbomind::available_cpu_count);
  m.def("cpu_isas", &turbomind::supported_isas);
  m.def("cpu_isa", [] { return turbomind::kernels().name; });
}
