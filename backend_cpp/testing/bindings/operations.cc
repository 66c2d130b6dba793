// Every operation and most operators by their names, with what the C++ functions take.
#include "kernels/all_operations.h"
#include "testing/bindings/arguments.h"

namespace turbomind {

namespace {

template <class Op>
void bind_operation(DeviceClass& device) {
  device.def(Op::kName.data(), [](TestDevice& d, const pybind11::args& fields) {
    Arguments arguments(*d.ops);
    d.ops->operations().require<Op>()(*d.ops, arguments.take<Op>(fields));
    arguments.fetch();
  });
}

template <class... Ops>
void bind_all(DeviceClass& device, OperationList<Ops...>) {
  (bind_operation<Ops>(device), ...);
}

template <class... Parameters>
void bind_operator(DeviceClass& device, const char* name, void (Operators::*method)(Parameters...)) {
  device.def(name, [method](TestDevice& d, const pybind11::args& given) {
    Arguments arguments(*d.ops);
    std::apply([&](const auto&... taken) { (d.ops.get()->*method)(taken...); },
               arguments.take_all<std::decay_t<Parameters>...>(given));
    arguments.fetch();
  });
}

}  // namespace

void bind_operations(DeviceClass& device) {
  bind_all(device, AllOperations{});
  using Heads = const HeadsView&;
  bind_operator<Activation, Heads, Heads, Heads>(device, "activate", &Operators::activate);
  bind_operator(device, "add_scaled", &Operators::add_scaled);
  bind_operator(device, "apply", &Operators::apply);
  bind_operator(device, "copy_heads", &Operators::copy_heads);
  bind_operator(device, "embed", &Operators::embed);
  bind_operator(device, "gather_rows", &Operators::gather_rows);
  bind_operator<const NormWeight&, Heads, Heads>(device, "norm", &Operators::norm);
  bind_operator(device, "rope", &Operators::rope);
  bind_operator(device, "rope_table", &Operators::rope_table);
  bind_operator(device, "route", &Operators::route);
  bind_operator(device, "scatter_rows", &Operators::scatter_rows);
}

}  // namespace turbomind
