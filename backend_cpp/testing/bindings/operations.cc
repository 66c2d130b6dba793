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
    call_with<Parameters...>(d, given, [&](const auto&... taken) { (d.ops.get()->*method)(taken...); });
  });
}

}  // namespace

void bind_operations(DeviceClass& device) {
  // Of a step, over blocks of this many tokens; rows after theirs in what operators are given are there to fill it up.
  device.def("set_spans", [](TestDevice& d, std::vector<Span> spans, int block_len) {
    d.spans = std::move(spans);
    std::vector<AttentionSpan> views;
    for (const auto& [first_token, count, first_position, blocks] : d.spans) {
      views.push_back({first_token, count, first_position, blocks.data()});
    }
    d.ops->set_spans(SpanSet{}, std::move(views), block_len);
  });
  bind_all(device, AllOperations{});
  using Heads = const HeadsView&;
  bind_operator<Activation, Heads, Heads, Heads>(device, "activate", &Operators::activate);
  bind_operator(device, "add_scaled", &Operators::add_scaled);
  bind_operator(device, "apply", &Operators::apply);
  bind_operator(device, "copy_heads", &Operators::copy_heads);
  bind_operator(device, "embed", &Operators::embed);
  bind_operator(device, "gather_rows", &Operators::gather_rows);
  bind_operator(device, "linear", &Operators::linear);
  bind_operator<const NormWeight&, Heads, Heads>(device, "norm", &Operators::norm);
  // rope_and_write, of keys and values alone where there is no table, and paged_attention.
  device.def("attention", [](TestDevice& d, const pybind11::args& given) {
    call_with<RopeTable, AttentionParams, HeadsView, float*, HeadsView, HeadsView, TypedRows>(
        d, given,
        [&](const RopeTable& table, const AttentionParams& params, const HeadsView& q, const float* factors,
            const HeadsView& k, const HeadsView& v, const TypedRows& out) {
          d.ops->rope_and_write(table, params, table.pairs > 0 ? q : HeadsView{}, factors, k, v);
          d.ops->paged_attention(params, q, out);
        });
  });
  bind_operator(device, "project_attention", &Operators::project_attention);
  bind_operator(device, "rope", &Operators::rope);
  bind_operator(device, "rope_and_write", &Operators::rope_and_write);
  bind_operator(device, "rope_table", &Operators::rope_table);
  bind_operator(device, "route", &Operators::route);
  bind_operator(device, "scatter_rows", &Operators::scatter_rows);
}

}  // namespace turbomind
