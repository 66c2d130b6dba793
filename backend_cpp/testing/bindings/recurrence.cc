#include <string>
#include <tuple>
#include <vector>

#include "kernels/recurrence.h"
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
  Array<float> fetch() const { return pages_.fetch(); }

 private:
  Operators& ops_;
  Floats pages_;
  AlignedBuffer spans_;
  StateMemory view_;
};

StridedRows strided(const Floats& x) {
  return x ? StridedRows{x, static_cast<size_t>(x.size(1))} : StridedRows{};
}

}  // namespace

void bind_recurrence(DeviceClass& device) {
  // x [rows, width], of which the first `channels` are convolved in place; weight [channels, kernel]; -> x, pages
  add_method(device, "causal_conv",
             [](TestDevice& d, const Floats& x, const Floats& weight, const Floats& bias, bool has_silu,
                const Array<float>& pages, int first, const std::vector<Span>& spans) {
               const States states(*d.ops, pages, first, spans);
               const ConvParams params{states.view(), weight.size(0), weight.size(1), weight, bias, has_silu};
               d.run(kCausalConv, params, strided(x), x.size(0), strided(x));
               return py::make_tuple(x.fetch(), states.fetch());
             });
  // a [rows, wider than heads width], b [rows, wider than heads] or none; dt_bias [heads, width];
  // decay, beta as like_decay and like_beta are
  add_method(device, "recurrence_gates",
             [](TestDevice& d, int kind, const Floats& a, const Floats& b, const Floats& a_log, const Floats& dt_bias,
                float dt_min, float dt_max, const Floats& like_decay, const Floats& like_beta) {
               const GateParams params{
                   static_cast<RecurrenceGate>(kind), dt_bias.size(0), dt_bias.size(1), a_log, dt_bias, dt_min, dt_max};
               d.run(kRecurrenceGates, params, strided(a), strided(b), a.size(0), like_decay, like_beta);
               return py::make_tuple(like_decay.fetch(), like_beta.fetch());
             });
  // q, k [rows, key_heads, wider than key_dim], v [rows, heads, wider than value_dim]; decay [heads], [rows, heads] or
  // [rows, heads, key_dim]; beta [rows, heads] or none; skip [heads] or none; like [rows, heads, value_dim];
  // -> out, pages
  add_method(device, "recurrence",
             [](TestDevice& d, const Floats& q, const Floats& k, const Floats& v, int key_dim, bool has_delta,
                const Floats& decay, const Floats& beta, const Floats& skip, const Array<float>& pages, int first,
                const std::vector<Span>& spans, const Floats& like) {
               const States states(*d.ops, pages, first, spans);
               RecurrenceParams params;
               params.state = states.view();
               params.heads = v.size(1);
               params.key_heads = k.size(1);
               params.key_dim = key_dim;
               params.value_dim = like.size(2);
               params.has_delta = has_delta;
               params.decay = decay;
               params.decay_width = decay.dims() == 1 ? 0 : decay.dims() == 2 ? 1 : key_dim;
               params.beta = beta;
               params.skip = skip;
               d.run(kRecurrence, params, heads_of(q, key_dim), heads_of(k, key_dim), heads_of(v, params.value_dim),
                     like);
               return py::make_tuple(like.fetch(), states.fetch());
             });
  // gate, x [rows, heads, head_dim]
  add_method(device, "gate_heads", [](TestDevice& d, const std::string& kind, const Floats& gate, const Floats& x) {
    const Activation activation = kind == "silu"      ? Activation::kSilu
                                  : kind == "sigmoid" ? Activation::kSigmoid
                                                      : Activation::kLinear;
    d.ops->gate_heads(activation, heads_of(gate), heads_of(x));
    return x.fetch();
  });
}

}  // namespace turbomind
