#include <pybind11/stl.h>

#include <tuple>
#include <vector>

#include "testing/bindings/device.h"

namespace py = pybind11;

namespace turbomind {

namespace {

// First row, rows, page, whether the state before is all zeros.
using Span = std::tuple<int32_t, int32_t, int32_t, bool>;

// The states of one layer, which are in pages between what belongs to others.
class States {
 public:
  // pages [count, floats of a page], of which a state begins at float `first`.
  States(Operators& ops, const Array<float>& pages, int first, const std::vector<Span>& spans)
      : ops_(ops), pages_(ops, pages), spans_(ops.allocate(spans.size() * sizeof(StateSpan))) {
    std::vector<StateSpan> given;
    for (const auto& [first_row, count, page, is_fresh] : spans) given.push_back({first_row, count, page, is_fresh});
    ops.upload(given.data(), spans_.size(), spans_.as<void>());
    view_.pages = reinterpret_cast<std::byte*>(pages_.data());
    view_.page_bytes = static_cast<size_t>(pages.shape(1)) * sizeof(float);
    view_.offset = static_cast<size_t>(first) * sizeof(float);
    view_.spans = spans_.as<StateSpan>();
    view_.span_count = static_cast<int>(spans.size());
    ops.wait();  // `given` goes
  }
  const StateMemory& view() const { return view_; }
  Array<float> fetch(const Array<float>& like) const { return pages_.fetch(like); }

 private:
  Operators& ops_;
  OnDevice<float> pages_;
  AlignedBuffer spans_;
  StateMemory view_;
};

StridedRows strided(float* data, const Array<float>& x) {
  return {data, static_cast<size_t>(x.shape(1))};
}

HeadsView all_heads(float* data, const Array<float>& x, int head_dim) {
  return {data,
          size_of(x, 0),
          static_cast<size_t>(x.shape(1) * x.shape(2)),
          size_of(x, 1),
          static_cast<size_t>(x.shape(2)),
          head_dim};
}

}  // namespace

void bind_recurrence(DeviceClass& device) {
  // x [rows, width], of which the first `channels` are convolved in place; weight [channels, kernel]; -> x, pages
  device.def("causal_conv", [](TestDevice& d, const Array<float>& x, const Array<float>& weight,
                               const OptionalArray<float>& bias, bool has_silu, const Array<float>& pages, int first,
                               const std::vector<Span>& spans) {
    const OnDevice<float> rows(*d.ops, x);
    const OnDevice<float> taps(*d.ops, weight);
    const OnDevice<float> shift(*d.ops, bias);
    const States states(*d.ops, pages, first, spans);
    const ConvParams params{states.view(), size_of(weight, 0), size_of(weight, 1), taps.data(), shift.data(), has_silu};
    d.ops->causal_conv(params, strided(rows.data(), x), size_of(x, 0), strided(rows.data(), x));
    return py::make_tuple(rows.fetch(x), states.fetch(pages));
  });
  // a [rows, wider than heads width], b [rows, wider than heads] or none; dt_bias [heads, width];
  // decay, beta as like_decay and like_beta are
  device.def("recurrence_gates", [](TestDevice& d, int kind, const Array<float>& a, const OptionalArray<float>& b,
                                    const Array<float>& a_log, const Array<float>& dt_bias, float dt_min, float dt_max,
                                    const Array<float>& like_decay, const Array<float>& like_beta) {
    const OnDevice<float> steps(*d.ops, a);
    const OnDevice<float> strengths(*d.ops, b);
    const OnDevice<float> logs(*d.ops, a_log);
    const OnDevice<float> shift(*d.ops, dt_bias);
    const OnDevice<float> decay(*d.ops, like_decay);
    const OnDevice<float> beta(*d.ops, like_beta);
    const GateParams params{static_cast<RecurrenceGate>(kind),
                            size_of(dt_bias, 0),
                            size_of(dt_bias, 1),
                            logs.data(),
                            shift.data(),
                            dt_min,
                            dt_max};
    d.ops->recurrence_gates(params, strided(steps.data(), a), b ? strided(strengths.data(), *b) : StridedRows{},
                            size_of(a, 0), decay.data(), beta.data());
    return py::make_tuple(decay.fetch(like_decay), beta.fetch(like_beta));
  });
  // q, k [rows, key_heads, wider than key_dim], v [rows, heads, wider than value_dim]; decay [heads], [rows, heads] or
  // [rows, heads, key_dim]; beta [rows, heads] or none; skip [heads] or none; like [rows, heads, value_dim];
  // -> out, pages
  device.def("recurrence", [](TestDevice& d, const Array<float>& q, const Array<float>& k, const Array<float>& v,
                              int key_dim, bool has_delta, const Array<float>& decay, const OptionalArray<float>& beta,
                              const OptionalArray<float>& skip, const Array<float>& pages, int first,
                              const std::vector<Span>& spans, const Array<float>& like) {
    const OnDevice<float> queries(*d.ops, q);
    const OnDevice<float> keys(*d.ops, k);
    const OnDevice<float> values(*d.ops, v);
    const OnDevice<float> decays(*d.ops, decay);
    const OnDevice<float> betas(*d.ops, beta);
    const OnDevice<float> skips(*d.ops, skip);
    const OnDevice<float> out(*d.ops, like);
    const States states(*d.ops, pages, first, spans);
    RecurrenceParams params;
    params.state = states.view();
    params.heads = size_of(v, 1);
    params.key_heads = size_of(k, 1);
    params.key_dim = key_dim;
    params.value_dim = size_of(like, 2);
    params.has_delta = has_delta;
    params.decay = decays.data();
    params.decay_width = decay.ndim() == 1 ? 0 : decay.ndim() == 2 ? 1 : key_dim;
    params.beta = betas.data();
    params.skip = skips.data();
    d.ops->recurrence(params, all_heads(queries.data(), q, key_dim), all_heads(keys.data(), k, key_dim),
                      all_heads(values.data(), v, params.value_dim), out.data());
    return py::make_tuple(out.fetch(like), states.fetch(pages));
  });
  // kind as in GateKind; gate, x [rows, heads, head_dim]
  device.def("gate_heads", [](TestDevice& d, int kind, const Array<float>& gate, const Array<float>& x) {
    const OnDevice<float> gates(*d.ops, gate);
    const OnDevice<float> values(*d.ops, x);
    d.ops->gate_heads(static_cast<GateKind>(kind), all_heads(gates.data(), gate, size_of(x, 2)),
                      all_heads(values.data(), x, size_of(x, 2)));
    return values.fetch(x);
  });
}

}  // namespace turbomind
