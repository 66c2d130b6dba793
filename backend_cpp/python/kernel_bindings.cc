// The kernels of the CPU on memory that Python's tensors own: arguments are addresses, and sizes in elements.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/error.h"
#include "device/cpu_operators.h"
#include "kernels/linear.h"
#include "kernels/paged_attention.h"
#include "model/embedding_range.h"
#include "model/worker/step_channel.h"
#include "python/worker_bindings.h"

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

// The cache of one layer.
struct LayerCache {
  LayerCache(const std::string& type, int heads, int key_dim, int value_dim, int block_len, int block_count)
      : layout(layout_of(type, heads, key_dim, value_dim, block_len)),
        memory(layout.block_bytes() * static_cast<size_t>(block_count)) {}

  // What a block holds goes to another, pair after pair; moves int32 [count, 2].
  void move(const py::array_t<int32_t, py::array::c_style>& moves) {
    const size_t bytes = layout.block_bytes();
    for (py::ssize_t i = 0; i < moves.shape(0); ++i) {
      std::memcpy(memory.as<std::byte>() + static_cast<size_t>(moves.at(i, 1)) * bytes,
                  memory.as<std::byte>() + static_cast<size_t>(moves.at(i, 0)) * bytes, bytes);
    }
  }

  CacheLayout layout;
  AlignedBuffer memory;
};

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
      given.push_back({span.first_row, span.count, span.first_position, blocks.data() + span.first_block});
    }
    span_count_ = static_cast<int>(given.size());
    ops_.set_spans(SpanSet{}, std::move(given), block_len);
  }

  // Writes keys and values, and attends. out [rows, heads, value_dim]; queries are multiplied by the scale already.
  void attend(LayerCache& cache, const Heads& q, const Heads& k, const Heads& v, Address out, float softcap, int window,
              Address sinks) {
    const py::gil_scoped_release unlocked;
    AttentionParams params;
    params.layout = cache.layout;
    params.pool = cache.memory.as<std::byte>();
    params.num_heads = std::get<3>(q);
    params.span_count = span_count_;
    params.softcap = softcap;
    params.window = window;
    params.sinks = pointer<const float>(sinks);
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

 private:
  CpuOperators ops_;
  int span_count_ = 0;
};

LinearWeight linear_weight(Address data, const std::string& type, int out_features, int in_features, Address bias) {
  const std::optional<DType> dtype = dtype_of(type);
  if (!dtype) throw invalid_argument("there are no weights of " + type);
  LinearWeight weight;
  weight.data = pointer<const void>(data);
  weight.format = format_of(*dtype);
  weight.out_features = out_features;
  weight.in_features = in_features;
  weight.bias = pointer<const float>(bias);
  return weight;
}

}  // namespace

void bind_kernels(py::module_& m) {
  py::class_<LinearWeight>(m, "LinearWeight", py::module_local())
      .def(py::init(&linear_weight), py::arg("data"), py::arg("type"), py::arg("out_features"), py::arg("in_features"),
           py::arg("bias"));
  py::class_<LayerCache>(m, "LayerCache", py::module_local())
      .def(py::init<const std::string&, int, int, int, int, int>(), py::arg("type"), py::arg("heads"),
           py::arg("key_dim"), py::arg("value_dim"), py::arg("block_len"), py::arg("block_count"))
      .def("move", &LayerCache::move, py::arg("moves"));
  m.def(
      "cache_block_bytes",
      [](const std::string& type, int heads, int key_dim, int value_dim, int block_len) {
        return layout_of(type, heads, key_dim, value_dim, block_len).block_bytes();
      },
      py::arg("type"), py::arg("heads"), py::arg("key_dim"), py::arg("value_dim"), py::arg("block_len"));
  py::class_<CpuKernels>(m, "CpuKernels", py::module_local())
      .def(py::init<int>(), py::arg("threads"))
      .def("set_spans", &CpuKernels::set_spans, py::arg("spans"), py::arg("blocks"), py::arg("block_len"))
      .def("attend", &CpuKernels::attend, py::arg("cache"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"),
           py::arg("softcap"), py::arg("window"), py::arg("sinks"))
      .def("linear", &CpuKernels::linear, py::arg("weight"), py::arg("x"), py::arg("rows"), py::arg("y"))
      .def("rms_norm", &CpuKernels::rms_norm, py::arg("weight"), py::arg("eps"), py::arg("x"), py::arg("rows"),
           py::arg("size"), py::arg("y"))
      .def("embed", &CpuKernels::embed, py::arg("table"), py::arg("tokens"), py::arg("rows"), py::arg("y"));
}

}  // namespace turbomind
