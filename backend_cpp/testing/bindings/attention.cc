#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/bindings/device.h"

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

  // A step: writes keys and values, and attends. q, k, v and `like`: [rows, heads, dim]. With cosine and sine
  // [rows, pairs], queries and keys are rotated first, and queries multiplied by factors [rows].
  Array<float> compute_attention(const OptionalArray<float>& q, const OptionalArray<float>& k,
                                 const OptionalArray<float>& v, const std::vector<Span>& spans, float softcap,
                                 int window, const OptionalArray<float>& alibi_slopes,
                                 const OptionalArray<float>& distance_biases, const OptionalArray<float>& sinks,
                                 const OptionalArray<int32_t>& kv_lens, const OptionalArray<float>& like,
                                 const OptionalArray<float>& cosine, const OptionalArray<float>& sine,
                                 bool is_interleaved, const OptionalArray<float>& factors) {
    const Floats queries(ops_, q), keys(ops_, k), values(ops_, v), slopes(ops_, alibi_slopes),
        biases(ops_, distance_biases), sink_logits(ops_, sinks), cosines(ops_, cosine), sines(ops_, sine),
        query_factors(ops_, factors), out(ops_, like);
    const Ints seen(ops_, kv_lens);
    AttentionParams params = begin_step(spans);
    params.softcap = softcap;
    params.alibi_slopes = slopes;
    params.distance_biases = biases;
    params.bias_reach = biases ? biases.size(1) / 2 : 0;
    params.window = window;
    params.sinks = sink_logits;
    params.kv_lens = seen;
    if (cosines) {
      const RopeTable table{cosines, sines, cosines.size(1), is_interleaved};
      ops_.rope_and_write(table, params, heads_of(queries), query_factors, heads_of(keys), heads_of(values));
    } else {
      ops_.write_cache(params, heads_of(keys), heads_of(values));
    }
    ops_.paged_attention(params, heads_of(queries), out.data());
    return out.fetch();
  }

  // Writes keys and values of rows alone.
  void write(const OptionalArray<float>& k, const OptionalArray<float>& v, const std::vector<Span>& spans) {
    const Floats keys(ops_, k), values(ops_, v);
    ops_.write_cache(begin_step(spans), heads_of(keys), heads_of(values));
    ops_.wait();
  }

  // The linear layer of attention to what attend wrote: q [rows, heads, dim], like [rows, its outputs].
  Array<float> project(const OptionalArray<float>& q, const std::vector<Span>& spans, const WeightOnDevice& weight,
                       const OptionalArray<float>& like) {
    const Floats queries(ops_, q), out(ops_, like);
    const AlignedBuffer workspace = float_buffer(ops_, queries.size(0), num_heads_ * layout_.value_dim);
    ops_.project_attention(begin_step(spans), heads_of(queries), workspace.as<float>(), weight.layer(), out, false);
    return out.fetch();
  }

  Array<uint8_t> bytes() const {
    Array<uint8_t> copy(static_cast<py::ssize_t>(pool_.size()));
    ops_.download(pool_.as<void>(), pool_.size(), copy.mutable_data());
    return copy;
  }

 private:
  // Sets the spans of a step, which attends without any rule.
  AttentionParams begin_step(const std::vector<Span>& spans) {
    std::vector<AttentionSpan> views;
    for (const auto& [first_token, count, first_position, blocks] : spans) {
      views.push_back({first_token, count, first_position, blocks.data()});
    }
    ops_.set_spans(SpanSet{}, std::move(views), layout_.block_len);
    AttentionParams params;
    params.layout = layout_;
    params.pool = pool_.as<std::byte>();
    params.num_heads = num_heads_;
    return params;
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
      .def("attention", &Cache::compute_attention)
      .def("write", &Cache::write)
      .def("project", &Cache::project)
      .def("bytes", &Cache::bytes);
  m.def("cache_block_bytes", [](int bits, const CacheSizes& sizes) { return cache_layout(bits, sizes).block_bytes(); });
}

}  // namespace turbomind
