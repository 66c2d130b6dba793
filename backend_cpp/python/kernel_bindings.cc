// The kernels of the CPU on memory that Python's tensors own: arguments are addresses, and sizes in elements.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/error.h"
#include "device/cpu_operators.h"
#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/paged_attention.h"
#include "kernels/recurrence.h"
#include "kernels/rope.h"
#include "model/embedding_range.h"
#include "model/worker/step_channel.h"
#include "python/bindings.h"
#include "python/fields.h"

namespace py = pybind11;

namespace turbomind {

namespace {

using Address = uintptr_t;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

CacheType cache_type(const std::string& name) {
  if (name == "float32") return CacheType::kFloat32;
  if (name == "bfloat16") return CacheType::kBFloat16;
  if (name == "int8") return CacheType::kInt8;
  if (name == "int4") return CacheType::kInt4;
  throw invalid_argument("there is no cache of " + name);
}

CacheLayout layout_of(const std::string& type, int heads, int key_dim, int value_dim, int block_len) {
  CacheLayout layout;
  layout.type = cache_type(type);
  layout.num_layers = 1;
  layout.num_kv_heads = heads;
  layout.key_dim = key_dim;
  layout.value_dim = value_dim;
  layout.block_len = block_len;
  return layout;
}

// The memory of a cache: pages that hold what layers remember of a block of tokens, or of a sequence.
struct PageArena {
  PageArena(size_t page_bytes, int page_count)
      : page_bytes(page_bytes), memory(page_bytes * static_cast<size_t>(page_count)) {}

  // Copies pages, pair after pair; moves int32 [count, 2].
  void move(const py::array_t<int32_t, py::array::c_style>& moves) {
    for (py::ssize_t i = 0; i < moves.shape(0); ++i)
      std::memcpy(page(moves.at(i, 1)), page(moves.at(i, 0)), page_bytes);
  }

  std::byte* page(int number) const { return memory.as<std::byte>() + static_cast<size_t>(number) * page_bytes; }

  size_t page_bytes;
  AlignedBuffer memory;
};

// The keys and values of one layer: at an offset of each page of an arena, which outlives it.
struct LayerCache {
  LayerCache(const PageArena& arena, size_t offset, const std::string& type, int heads, int key_dim, int value_dim,
             int block_len)
      : layout(layout_of(type, heads, key_dim, value_dim, block_len)), pool(arena.page(0) + offset) {
    layout.page_bytes = arena.page_bytes;
  }

  CacheLayout layout;
  std::byte* pool;
};

// The state of one layer: at an offset of a sequence's page number `page` of an arena, which outlives it.
struct LayerState {
  LayerState(const PageArena& arena, int page, size_t offset) : arena(arena), page(page), offset(offset) {}

  const PageArena& arena;
  int page;
  size_t offset;
};

// Rows of a matrix: address, stride of a row.
using Rows = std::tuple<Address, size_t>;

// Heads of a tensor: address, rows, stride of a row, heads, stride of a head, size of a head.
using Heads = std::tuple<Address, int, size_t, int, size_t, int>;

HeadsView view(const Heads& heads) {
  const auto& [address, rows, row_stride, count, head_stride, head_dim] = heads;
  return {pointer<float>(address), rows, row_stride, count, head_stride, head_dim};
}

class CpuKernels {
 public:
  explicit CpuKernels(int threads) : ops_(threads) {}

  // spans int32 [count, fields of ChannelSpan]; blocks int32, kept by the caller as long as the step lasts.
  void set_spans(const py::array_t<int32_t, py::array::c_style>& spans, const py::array_t<int32_t>& blocks,
                 int block_len) {
    std::vector<AttentionSpan> given;
    const auto* fields = reinterpret_cast<const ChannelSpan*>(spans.data());
    for (py::ssize_t i = 0; i < spans.shape(0); ++i) {
      const ChannelSpan& span = fields[i];
      given.push_back({span.first_token, span.count, span.first_position, blocks.data() + span.first_block});
    }
    span_count_ = static_cast<int>(given.size());
    ops_.set_spans({SpanUse::kTokens, 0}, std::move(given), block_len);
  }

  // The pages of the sequences' states follow their blocks. For as long as the step lasts.
  void set_states(const py::array_t<int32_t, py::array::c_style>& spans, const py::array_t<int32_t>& blocks,
                  int page_count) {
    const auto* fields = reinterpret_cast<const ChannelSpan*>(spans.data());
    states_.assign(static_cast<size_t>(page_count), {});
    for (int page = 0; page < page_count; ++page) {
      for (py::ssize_t i = 0; i < spans.shape(0); ++i) {
        const ChannelSpan& span = fields[i];
        const int32_t number = blocks.at(span.first_block + span.block_count + page);
        states_[static_cast<size_t>(page)].push_back(
            {span.first_token, span.count, number, span.first_position == 0 ? 1 : 0});
      }
    }
  }

  // Writes keys and values, and attends. out [rows, heads, value_dim]; queries are multiplied by the scale already.
  void attention(LayerCache& cache, const Heads& q, const Heads& k, const Heads& v, Address out, float softcap,
                 int window, Address sinks, Address alibi_slopes) {
    const py::gil_scoped_release unlocked;
    AttentionParams params;
    params.layout = cache.layout;
    params.pool = cache.pool;
    params.span_count = span_count_;
    params.num_heads = std::get<3>(q);
    params.softcap = softcap;
    params.window = window;
    params.sinks = pointer<const float>(sinks);
    params.alibi_slopes = pointer<const float>(alibi_slopes);
    ops_.write_cache(params, view(k), view(v));
    ops_.paged_attention(params, view(q), pointer<float>(out));
  }

  // y = x W^T + b
  void linear(const LinearWeight& weight, Address x, int rows, Address y) {
    const py::gil_scoped_release unlocked;
    ops_.linear(weight, pointer<const float>(x), rows, pointer<float>(y), false);
  }

  // x, y [rows, size]; weight float32 [size].
  void rms_norm(Address weight, float eps, Address x, int rows, int size, Address y) {
    const py::gil_scoped_release unlocked;
    NormWeight given;
    given.weight = pointer<const float>(weight);
    given.eps = eps;
    ops_.norm(given, pointer<const float>(x), rows, size, pointer<float>(y));
  }

  void embed(const LinearWeight& table, Address tokens, int rows, Address y) {
    const py::gil_scoped_release unlocked;
    ops_.embed(table, pointer<const int32_t>(tokens), rows, 1, pointer<float>(y));
  }

  // In place, one weight [head_dim] for all heads.
  void rms_norm_heads(Address weight, float eps, const Heads& heads) {
    const py::gil_scoped_release unlocked;
    NormWeight given;
    given.weight = pointer<const float>(weight);
    given.eps = eps;
    ops_.norm_heads(given, view(heads));
  }

  // Rotates queries and keys in place. cosine, sine: [rows, at least `pairs`], of which the first ones are taken.
  void rope(const Rows& cosine, const Rows& sine, int pairs, bool is_interleaved, const Heads& q, const Heads& k) {
    const py::gil_scoped_release unlocked;
    const auto rows = static_cast<size_t>(std::get<1>(q));
    const RopeTable table = {dense(cosine, rows, pairs, cosines_), dense(sine, rows, pairs, sines_), pairs,
                             is_interleaved};
    ops_.rope(table, view(q), nullptr);
    ops_.rope(table, view(k), nullptr);
  }

  // y [rows, size] = silu(gate) * up, of gate_up [rows, 2 size].
  void silu_and_mul(Address gate_up, int rows, int size, Address y) {
    const py::gil_scoped_release unlocked;
    ops_.activate_gated(Activation::kSilu, pointer<const float>(gate_up), rows, size, pointer<float>(y));
  }

  // x *= silu(gate)
  void silu_gate(const Heads& gate, const Heads& x) {
    const py::gil_scoped_release unlocked;
    ops_.gate_heads(Activation::kSilu, view(gate), view(x));
  }

  // An operation on the CPU's memory.
  template <class Op>
  void run(const py::args& fields) {
    const Op op = take_fields<Op>(*this, fields);
    const py::gil_scoped_release unlocked;
    op.run(ops_.queue());
  }

  // A pointer is an address, and the memory of a state a LayerState.
  template <class T>
  T take(const py::object& given) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return given.cast<T>();
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(given.cast<int>());
    } else if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(given.cast<Address>());
    } else if constexpr (std::is_same_v<T, StateMemory>) {
      return memory(given.cast<const LayerState&>());
    } else {
      return take_fields<T>(*this, given);
    }
  }

 private:
  // The first `size` numbers of each row, one row after the other, in `copy`.
  static const float* dense(const Rows& from, size_t rows, int size, std::vector<float>& copy) {
    const auto& [address, stride] = from;
    const auto* row = pointer<const float>(address);
    const auto width = static_cast<size_t>(size);
    copy.resize(rows * width);
    for (float* to = copy.data(); to != copy.data() + copy.size(); to += width, row += stride)
      std::copy_n(row, width, to);
    return copy.data();
  }

  StateMemory memory(const LayerState& state) const {
    const std::vector<StateSpan>& spans = states_.at(static_cast<size_t>(state.page));
    return {state.arena.page(0), state.arena.page_bytes, state.offset, spans.data(), static_cast<int>(spans.size())};
  }

  CpuOperators ops_;
  int span_count_ = 0;
  std::vector<float> cosines_, sines_;          // [rows, pairs] of the rotation that runs
  std::vector<std::vector<StateSpan>> states_;  // [pages of a state][spans]
};

LinearWeight linear_weight(Address data, const std::string& type, int out_features, int in_features, Address bias,
                           bool is_tiled) {
  const std::optional<DType> dtype = dtype_of(type);
  if (!dtype) throw invalid_argument("there are no weights of " + type);
  LinearWeight weight;
  weight.data = pointer<const void>(data);
  weight.format = format_of(*dtype);
  weight.out_features = out_features;
  weight.in_features = in_features;
  weight.bias = pointer<const float>(bias);
  weight.is_tiled = is_tiled;
  return weight;
}

}  // namespace

void bind_kernels(py::module_& m) {
  py::class_<LinearWeight>(m, "LinearWeight", py::module_local())
      .def(py::init(&linear_weight), py::arg("data"), py::arg("type"), py::arg("out_features"), py::arg("in_features"),
           py::arg("bias"), py::arg("is_tiled"));
  py::class_<PageArena>(m, "PageArena", py::module_local())
      .def(py::init<size_t, int>(), py::arg("page_bytes"), py::arg("page_count"))
      .def("move", &PageArena::move, py::arg("moves"));
  py::class_<LayerCache>(m, "LayerCache", py::module_local())
      .def(py::init<const PageArena&, size_t, const std::string&, int, int, int, int>(), py::keep_alive<1, 2>(),
           py::arg("arena"), py::arg("offset"), py::arg("type"), py::arg("heads"), py::arg("key_dim"),
           py::arg("value_dim"), py::arg("block_len"));
  py::class_<LayerState>(m, "LayerState", py::module_local())
      .def(py::init<const PageArena&, int, size_t>(), py::keep_alive<1, 2>(), py::arg("arena"), py::arg("page"),
           py::arg("offset"));
  m.def(
      "cache_block_bytes",
      [](const std::string& type, int heads, int key_dim, int value_dim, int block_len) {
        return layout_of(type, heads, key_dim, value_dim, block_len).block_bytes();
      },
      py::arg("type"), py::arg("heads"), py::arg("key_dim"), py::arg("value_dim"), py::arg("block_len"));
  py::class_<CpuKernels>(m, "CpuKernels", py::module_local())
      .def(py::init<int>(), py::arg("threads"))
      .def("set_spans", &CpuKernels::set_spans, py::arg("spans"), py::arg("blocks"), py::arg("block_len"))
      .def("attention", &CpuKernels::attention, py::arg("cache"), py::arg("q"), py::arg("k"), py::arg("v"),
           py::arg("out"), py::arg("softcap"), py::arg("window"), py::arg("sinks"), py::arg("alibi_slopes"))
      .def("linear", &CpuKernels::linear, py::arg("weight"), py::arg("x"), py::arg("rows"), py::arg("y"))
      .def("rms_norm", &CpuKernels::rms_norm, py::arg("weight"), py::arg("eps"), py::arg("x"), py::arg("rows"),
           py::arg("size"), py::arg("y"))
      .def("embed", &CpuKernels::embed, py::arg("table"), py::arg("tokens"), py::arg("rows"), py::arg("y"))
      .def("set_states", &CpuKernels::set_states, py::arg("spans"), py::arg("blocks"), py::arg("page_count"))
      .def("rms_norm_heads", &CpuKernels::rms_norm_heads, py::arg("weight"), py::arg("eps"), py::arg("heads"))
      .def("rope", &CpuKernels::rope, py::arg("cosine"), py::arg("sine"), py::arg("pairs"), py::arg("is_interleaved"),
           py::arg("q"), py::arg("k"))
      .def("silu_and_mul", &CpuKernels::silu_and_mul, py::arg("gate_up"), py::arg("rows"), py::arg("size"),
           py::arg("y"))
      .def("silu_gate", &CpuKernels::silu_gate, py::arg("gate"), py::arg("x"))
      .def("causal_conv", &CpuKernels::run<CausalConv>)
      .def("recurrence_gates", &CpuKernels::run<RecurrenceGates>)
      .def("recurrence", &CpuKernels::run<Recurrence>);
}

}  // namespace turbomind
