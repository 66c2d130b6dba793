// lmdeploy._turbomind: the engine for Python. Wrapped by lmdeploy/turbomind/engine.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "base/cpu_share.h"
#include "base/kernel_choice.h"
#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "model/native_runner.h"
#include "python/bindings.h"

namespace {

// One dictionary an operator, in the table's order; `order` are the kernels' sources.
pybind11::list kernel_operators() {
  pybind11::list operators;
  for (const turbomind::KernelOperator& op : turbomind::kernel_operators()) {
    pybind11::list order;
    for (const turbomind::KernelSource source : op.order) order.append(turbomind::name_of(source));
    pybind11::dict fields;
    fields["name"] = op.name;
    fields["engine"] = op.engine;
    fields["what"] = op.what;
    fields["order"] = order;
    fields["checked"] = op.checked;
    operators.append(fields);
  }
  return operators;
}

// LMDEPLOY_CUDA_KERNELS of an operator; None: not set. Raises for an invalid value.
std::optional<std::string> requested_kernels(const std::string& engine, const std::string& name) {
  const auto requested = turbomind::requested_kernels(engine, name);
  return requested ? std::optional<std::string>(turbomind::name_of(*requested)) : std::nullopt;
}

}  // namespace

PYBIND11_MODULE(_turbomind, m) {
  turbomind::bind_engine(m);
  turbomind::bind_worker(m);
  turbomind::bind_kernels(m);
  turbomind::bind_quantized(m);
  m.def("available_cpu_count", &turbomind::available_cpu_count);
  m.def("kernel_operators", &kernel_operators);
  m.def("requested_kernels", &requested_kernels, pybind11::arg("engine"), pybind11::arg("name"));
  m.def("model_program", &turbomind::NativeRunner::program_text, pybind11::arg("spec_file"));
  m.def("cpu_isas", &turbomind::supported_isas);
  m.def("cpu_isa", [] { return turbomind::kernels().name; });
}
