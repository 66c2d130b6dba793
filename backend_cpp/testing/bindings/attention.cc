#include <pybind11/stl.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/bindings/device.h"
#include "testing/bindings/weight.h"

namespace py = pybind11;

namespace turbomind {

namespace {

// First row, rows, position of the first, ids of the blocks.
using Span = std::tuple<int, int, int, std::vector<int32_t>>;

// The cache of one layer.
class Cache {
 public:
  Cache(TestDevice& device, int blocks, int bits, const CacheSizes& sizes)
      : ops_(*device.ops), layout_(cache_layout(bits, sizes)), num_heads_(std::get<0>(sizes)) {
    // Poison, not zeros: what was never written must never be read.
    const std::vector<uint8_t> poison(static_cast<size_t>(blocks) * layout_.block_bytes(), 0xFF);
    pool_ = ops_.allocate(poison.size());
    ops_.upload(poison.data(), poison.size(), pool_.as<void>());
  }

  // A step: writes keys and values, and attends. q, k, v and what is returned: [rows, heads, dim]. With cosine and
  // sine [rows, pairs], queries and keys are rotated first, and queries multiplied by factors [rows].
  Array<float> attend(const Array<float>& q, const Array<float>& k, const Array<float>& v,
                      const std::vector<Span>& spans, float softcap, int window,
                      const OptionalArray<float>& alibi_slopes, const OptionalArray<float>& distance_biases,
                      const OptionalArray<float>& sinks, const OptionalArray<int32_t>& kv_lens,
                      const Array<float>& like, const OptionalArray<float>& cosine, const OptionalArray<float>& sine,
                      bool is_interleaved, const OptionalArray<float>& factors) {
    const OnDevice<float> queries(ops_, q);
    const OnDevice<float> keys(ops_, k);
    const OnDevice<float> values(ops_, v);
    const OnDevice<float> slopes(ops_, alibi_slopes);
    const OnDevice<float> biases(ops_, distance_biases);
    const OnDevice<float> sink_logits(ops_, sinks);
    const OnDevice<int32_t> seen(ops_, kv_lens);
    const OnDevice<float> cosines(ops_, cosine);
    const OnDevice<float> sines(ops_, sine);
    const OnDevice<float> query_factors(ops_, factors);
    const OnDevice<float> out(ops_, like);
    AttentionParams params;
    params.layout = layout_;
    params.pool = pool_.as<std::byte>();
    params.num_heads = num_heads_;
    params.softcap = softcap;
    params.alibi_slopes = slopes.data();
    params.distance_biases = biases.data();
    params.bias_reach = distance_biases ? size_of(*distance_biases, 1) / 2 : 0;
    params.window = window;
    params.sinks = sink_logits.data();
    params.kv_lens = seen.data();
    set_spans(spans);
    if (cosine) {
      const RopeTable table{cosines.data(), sines.data(), size_of(*cosine, 1), is_interleaved};
      ops_.rope_and_write(table, params, view(queries, q), query_factors.data(), view(keys, k), view(values, v));
    } else {
      ops_.write_cache(params, view(keys, k), view(values, v));
    }
    ops_.paged_attention(params, view(queries, q), out.data());
    return out.fetch(like);
  }

  // Writes keys and values of rows alone.
  void write(const Array<float>& k, const Array<float>& v, const std::vector<Span>& spans) {
    const OnDevice<float> keys(ops_, k);
    const OnDevice<float> values(ops_, v);
    AttentionParams params;
    params.layout = layout_;
    params.pool = pool_.as<std::byte>();
    params.num_heads = num_heads_;
    set_spans(spans);
    ops_.write_cache(params, view(keys, k), view(values, v));
    ops_.wait();
  }

  // The linear layer of attention to what attend wrote: q [rows, heads, dim], like [rows, its outputs].
  Array<float> project(const Array<float>& q, const std::vector<Span>& spans, const WeightOnDevice& weight,
                       const Array<float>& like) {
    const OnDevice<float> queries(ops_, q);
    const OnDevice<float> out(ops_, like);
    AttentionParams params;
    params.layout = layout_;
    params.pool = pool_.as<std::byte>();
    params.num_heads = num_heads_;
    set_spans(spans);
    const AlignedBuffer workspace = float_buffer(ops_, size_of(q, 0), num_heads_ * layout_.value_dim);
    ops_.project_attention(params, view(queries, q), workspace.as<float>(), weight.view(), out.data(), false);
    return out.fetch(like);
  }

  Array<uint8_t> bytes() const {
    Array<uint8_t> copy(static_cast<py::ssize_t>(pool_.size()));
    ops_.download(pool_.as<void>(), pool_.size(), copy.mutable_data());
    return copy;
  }

 private:
  static HeadsView view(const OnDevice<float>& x, const Array<float>& shape) {
    return heads_view(x.data(), size_of(shape, 0), static_cast<size_t>(shape.shape(1) * shape.shape(2)), 0,
                      size_of(shape, 1), size_of(shape, 2));
  }
  void set_spans(const std::vector<Span>& spans) {
    std::vector<AttentionSpan> views;
    for (const auto& [first_row, count, first_position, blocks] : spans) {
      views.push_back({first_row, count, first_position, blocks.data()});
    }
    ops_.set_spans(SpanSet{}, std::move(views), layout_.block_len);
  }

  Operators& ops_;
  CacheLayout layout_;
  int num_heads_;
  AlignedBuffer pool_;
};

}  // namespace

void bind_attention(py::module_& m) {
  py::class_<Cache>(m, "Cache", py::module_local())
      .def(py::init<TestDevice&, int, int, const CacheSizes&>(), py::keep_alive<1, 2>())
      .def("attend", &Cache::attend)
      .def("write", &Cache::write)
      .def("project", &Cache::project)
      .def("bytes", &Cache::bytes);
  m.def("cache_block_bytes", [](int bits, const CacheSizes& sizes) { return cache_layout(bits, sizes).block_bytes(); });
}

}  // namespace turbomind
