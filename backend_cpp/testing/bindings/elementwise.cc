#include <pybind11/stl.h>

#include "testing/bindings/device.h"
#include "testing/bindings/weight.h"

namespace py = pybind11;

namespace turbomind {

namespace {

HeadsView whole(float* data, const Array<float>& x) {
  return heads_view(data, size_of(x, 0), static_cast<size_t>(x.shape(1) * x.shape(2)), 0, size_of(x, 1), size_of(x, 2));
}

NormWeight norm_weight(bool is_layer_norm, float eps, const OnDevice<float>& weight, const float* bias) {
  return {is_layer_norm ? NormKind::kLayer : NormKind::kRms, eps, weight.data(), bias};
}

void bind_norms(DeviceClass& device) {
  // x [rows, size]
  device.def("norm", [](TestDevice& d, const Array<float>& x, bool is_layer_norm, const Array<float>& weight,
                        const OptionalArray<float>& bias, float eps) {
    const OnDevice<float> rows(*d.ops, x);
    const OnDevice<float> scale(*d.ops, weight);
    const OnDevice<float> shift(*d.ops, bias);
    d.ops->norm(norm_weight(is_layer_norm, eps, scale, shift.data()), rows.data(), size_of(x, 0), size_of(x, 1),
                rows.data());
    return rows.fetch(x);
  });
  // x [rows, width], of which heads * head_dim floats from `first` are heads
  device.def("norm_heads", [](TestDevice& d, const Array<float>& x, int first, int heads, int head_dim,
                              bool is_layer_norm, const Array<float>& weight, float eps) {
    const OnDevice<float> rows(*d.ops, x);
    const OnDevice<float> scale(*d.ops, weight);
    d.ops->norm_heads(norm_weight(is_layer_norm, eps, scale, nullptr),
                      heads_view(rows.data(), size_of(x, 0), static_cast<size_t>(x.shape(1)), first, heads, head_dim));
    return rows.fetch(x);
  });
}

void bind_activations(DeviceClass& device) {
  // x [rows, size], or gated [rows, 2 size]; like [rows, size]
  device.def("activate",
             [](TestDevice& d, const Array<float>& x, int activation, bool is_gated, const Array<float>& like) {
               const OnDevice<float> input(*d.ops, x);
               const OnDevice<float> output(*d.ops, like);
               const auto operation = is_gated ? &Operators::activate_gated : &Operators::activate;
               ((*d.ops).*operation)(static_cast<Activation>(activation), input.data(), size_of(like, 0),
                                     size_of(like, 1), output.data());
               return output.fetch(like);
             });
  device.def("xielu", [](TestDevice& d, const Array<float>& x, float positive, float negative, float linear) {
    const OnDevice<float> values(*d.ops, x);
    d.ops->xielu({positive, negative, linear}, values.data(), size_of(x, 0), size_of(x, 1), values.data());
    return values.fetch(x);
  });
  // x [count, rows, size], factors [rows, count, count]
  device.def("mix_streams", [](TestDevice& d, const Array<float>& x, const Array<float>& factors) {
    const OnDevice<float> streams(*d.ops, x);
    const OnDevice<float> mixed(*d.ops, x);
    const OnDevice<float> numbers(*d.ops, factors);
    d.ops->mix_streams({size_of(x, 0), size_of(x, 1), size_of(x, 2)}, numbers.data(), streams.data(), mixed.data());
    return mixed.fetch(x);
  });
  // x [count, rows, size], factors [rows, count], made [rows, size]
  device.def("correct_streams", [](TestDevice& d, const Array<float>& x, int active, const Array<float>& factors,
                                   const Array<float>& made) {
    const OnDevice<float> streams(*d.ops, x);
    const OnDevice<float> numbers(*d.ops, factors);
    const OnDevice<float> rows(*d.ops, made);
    d.ops->correct_streams({size_of(x, 0), size_of(x, 1), size_of(x, 2)}, active, numbers.data(), rows.data(),
                           streams.data());
    return streams.fetch(x);
  });
  // like, x [rows, size]
  device.def("match_rms", [](TestDevice& d, const Array<float>& like, const Array<float>& x) {
    const OnDevice<float> wanted(*d.ops, like);
    const OnDevice<float> rows(*d.ops, x);
    d.ops->match_rms(wanted.data(), size_of(x, 0), size_of(x, 1), rows.data());
    return rows.fetch(x);
  });
  // x [rows, width], of which the first `size` of each are cut
  device.def("cut_rows", [](TestDevice& d, const Array<float>& x, float factor, int size) {
    const OnDevice<float> rows(*d.ops, x);
    d.ops->cut_rows(factor, size_of(x, 0), size, static_cast<size_t>(x.shape(1)), rows.data());
    return rows.fetch(x);
  });
  device.def("sigmoid", [](TestDevice& d, const Array<float>& x) {
    const OnDevice<float> values(*d.ops, x);
    d.ops->sigmoid(static_cast<int>(x.size()), values.data());
    return values.fetch(x);
  });
  device.def("clamp", [](TestDevice& d, float limit, const Array<float>& x) {
    const OnDevice<float> values(*d.ops, x);
    d.ops->clamp(limit, size_of(x, 0), size_of(x, 1), values.data());
    return values.fetch(x);
  });
  device.def("scale_and_cap", [](TestDevice& d, const Array<float>& x, float scale, float softcap) {
    const OnDevice<float> values(*d.ops, x);
    d.ops->scale_and_cap(scale, softcap, size_of(x, 0), size_of(x, 1), values.data());
    return values.fetch(x);
  });
  device.def("add_scaled", [](TestDevice& d, float scale, const Array<float>& x, const Array<float>& y) {
    const OnDevice<float> values(*d.ops, x);
    const OnDevice<float> sums(*d.ops, y);
    d.ops->add_scaled(scale, values.data(), size_of(x, 0), size_of(x, 1), sums.data());
    return sums.fetch(y);
  });
}

void bind_rotations(DeviceClass& device) {
  // positions [rows, axes], sets [rows] or none, frequencies [sets, pairs], axis_of_pair [pairs] or none;
  // cosine, sine [rows, pairs] as like is
  device.def("rope_table", [](TestDevice& d, const Array<int32_t>& positions, const OptionalArray<int32_t>& sets,
                              const Array<float>& frequencies, float scale, const OptionalArray<int32_t>& axis_of_pair,
                              const Array<float>& like) {
    const OnDevice<int32_t> at(*d.ops, positions);
    const OnDevice<int32_t> set_of(*d.ops, sets);
    const OnDevice<float> speeds(*d.ops, frequencies);
    const OnDevice<int32_t> axes(*d.ops, axis_of_pair);
    const OnDevice<float> cosine(*d.ops, like);
    const OnDevice<float> sine(*d.ops, like);
    d.ops->rope_table(
        {at.data(), set_of.data(), speeds.data(), size_of(frequencies, 1), scale, size_of(positions, 1), axes.data()},
        size_of(positions, 0), cosine.data(), sine.data());
    return py::make_tuple(cosine.fetch(like), sine.fetch(like));
  });
  // x [rows, heads, head_dim]; cosine, sine [rows, pairs]; factors [rows] or none
  device.def("rope", [](TestDevice& d, const Array<float>& x, const Array<float>& cosine, const Array<float>& sine,
                        bool is_interleaved, const OptionalArray<float>& factors) {
    const OnDevice<float> values(*d.ops, x);
    const OnDevice<float> cosines(*d.ops, cosine);
    const OnDevice<float> sines(*d.ops, sine);
    const OnDevice<float> row_factors(*d.ops, factors);
    d.ops->rope({cosines.data(), sines.data(), size_of(cosine, 1), is_interleaved}, whole(values.data(), x),
                row_factors.data());
    return values.fetch(x);
  });
}

void bind_copies(DeviceClass& device) {
  // table [vocab, size], tokens [rows], like [rows, size]
  device.def("embed", [](TestDevice& d, const WeightOnDevice& table, const Array<int32_t>& tokens, float scale,
                         const Array<float>& like) {
    const OnDevice<int32_t> ids(*d.ops, tokens);
    const OnDevice<float> rows(*d.ops, like);
    d.ops->embed(table.view(), ids.data(), size_of(tokens, 0), scale, rows.data());
    return rows.fetch(like);
  });
  // x [.., size], indices [count], like [count, size]
  device.def("gather_rows",
             [](TestDevice& d, const Array<float>& x, const Array<int32_t>& indices, const Array<float>& like) {
               const OnDevice<float> source(*d.ops, x);
               const OnDevice<int32_t> wanted(*d.ops, indices);
               const OnDevice<float> rows(*d.ops, like);
               d.ops->gather_rows(source.data(), wanted.data(), size_of(indices, 0), size_of(x, 1), rows.data());
               return rows.fetch(like);
             });
  // x [count, size], indices [count], y [.., size]: y with those rows replaced, or with x added to them
  device.def("scatter_rows", [](TestDevice& d, const Array<float>& x, const Array<int32_t>& indices,
                                const Array<float>& y, bool accumulate) {
    const OnDevice<float> source(*d.ops, x);
    const OnDevice<int32_t> places(*d.ops, indices);
    const OnDevice<float> rows(*d.ops, y);
    d.ops->scatter_rows(source.data(), places.data(), size_of(indices, 0), size_of(x, 1), rows.data(), accumulate);
    return rows.fetch(y);
  });
  // x [rows, heads, head_dim], y [rows, heads, width]: the heads come to the front of y's.
  device.def("copy_heads", [](TestDevice& d, const Array<float>& x, const Array<float>& y) {
    const OnDevice<float> source(*d.ops, x);
    const OnDevice<float> target(*d.ops, y);
    HeadsView to = whole(target.data(), y);
    to.head_dim = size_of(x, 2);
    d.ops->copy_heads(whole(source.data(), x), to);
    return target.fetch(y);
  });
}

}  // namespace

void bind_elementwise(DeviceClass& device) {
  bind_norms(device);
  bind_activations(device);
  bind_rotations(device);
  bind_copies(device);
}

}  // namespace turbomind
