#include "kernels/streams.h"
#include "testing/bindings/device.h"

namespace py = pybind11;

namespace turbomind {

namespace {

NormWeight norm_weight(bool is_layer_norm, float eps, const float* weight, const float* bias) {
  return {is_layer_norm ? NormKind::kLayer : NormKind::kRms, eps, weight, bias};
}

StreamShape streams_of(const Floats& x) {
  return {x.size(0), x.size(1), x.size(2)};
}

void bind_norms(DeviceClass& device) {
  // x [rows, size]
  add_method(
      device, "norm",
      [](TestDevice& d, const Floats& x, bool is_layer_norm, const Floats& weight, const Floats& bias, float eps) {
        d.ops->norm(norm_weight(is_layer_norm, eps, weight, bias), x, x.size(0), x.size(1), x);
        return x.fetch();
      });
  // x [rows, width], of which heads * head_dim floats from `first` are heads
  add_method(device, "norm_heads",
             [](TestDevice& d, const Floats& x, int first, int heads, int head_dim, bool is_layer_norm,
                const Floats& weight, float eps) {
               d.ops->norm_heads(norm_weight(is_layer_norm, eps, weight, nullptr),
                                 {x + first, x.size(0), static_cast<size_t>(x.size(1)), heads,
                                  static_cast<size_t>(head_dim), head_dim});
               return x.fetch();
             });
}

void bind_activations(DeviceClass& device) {
  // x [rows, size], or gated [rows, 2 size]; like [rows, size]
  add_method(device, "activate", [](TestDevice& d, const Floats& x, int activation, bool is_gated, const Floats& like) {
    const auto kind = static_cast<Activation>(activation);
    if (is_gated) {
      d.ops->activate_gated(kind, x, like.size(0), like.size(1), like);
    } else {
      d.ops->activate(kind, x, like.size(0), like.size(1), like);
    }
    return like.fetch();
  });
  add_method(device, "xielu", [](TestDevice& d, const Floats& x, float positive, float negative, float linear) {
    d.run(kXielu, {positive, negative, linear}, x, x.size(0), x.size(1), x);
    return x.fetch();
  });
  // x [count, rows, size], factors [rows, count, count]
  add_method(device, "mix_streams", [](TestDevice& d, const Floats& x, const Floats& factors) {
    const Floats mixed(*d.ops, x.fetch());
    d.run(kMixStreams, streams_of(x), factors, x, mixed);
    return mixed.fetch();
  });
  // x [count, rows, size], factors [rows, count], made [rows, size]
  add_method(device, "correct_streams",
             [](TestDevice& d, const Floats& x, int active, const Floats& factors, const Floats& made) {
               d.run(kCorrectStreams, streams_of(x), active, factors, made, x);
               return x.fetch();
             });
  // like, x [rows, size]
  add_method(device, "match_rms", [](TestDevice& d, const Floats& like, const Floats& x) {
    d.run(kMatchRms, like, x.size(0), x.size(1), x);
    return x.fetch();
  });
  // x [rows, width], of which the first `size` of each are cut
  add_method(device, "cut_rows", [](TestDevice& d, const Floats& x, float factor, int size) {
    d.run(kCutRows, factor, x.size(0), size, static_cast<size_t>(x.size(1)), x);
    return x.fetch();
  });
  // Fields of Pointwise, factors [rows] or none. x [rows, heads, width], of which the first head_dim of each head
  // change.
  add_method(
      device, "apply",
      [](TestDevice& d, const Floats& x, int head_dim, int kind, float scale, float limit, const Floats& factors) {
        d.ops->apply({static_cast<Pointwise::Kind>(kind), scale, limit, factors}, heads_of(x, head_dim));
        return x.fetch();
      });
  add_method(device, "add_scaled", [](TestDevice& d, float scale, const Floats& x, const Floats& y) {
    d.ops->add_scaled(scale, x, x.size(0), x.size(1), y);
    return y.fetch();
  });
}

void bind_rotations(DeviceClass& device) {
  // positions [rows, axes], sets [rows] or none, frequencies [sets, pairs], axis_of_pair [pairs] or none;
  // cosine, sine [rows, pairs] as like is
  add_method(device, "rope_table",
             [](TestDevice& d, const Ints& positions, const Ints& sets, const Floats& frequencies, float scale,
                const Ints& axis_of_pair, const Floats& like) {
               const Floats sine(*d.ops, like.fetch());
               d.ops->rope_table(
                   {positions, sets, frequencies, frequencies.size(1), scale, positions.size(1), axis_of_pair},
                   positions.size(0), like, sine);
               return py::make_tuple(like.fetch(), sine.fetch());
             });
  // x [rows, heads, head_dim]; cosine, sine [rows, pairs]; factors [rows] or none
  add_method(device, "rope",
             [](TestDevice& d, const Floats& x, const Floats& cosine, const Floats& sine, bool is_interleaved,
                const Floats& factors) {
               d.ops->rope({cosine, sine, cosine.size(1), is_interleaved}, heads_of(x), factors);
               return x.fetch();
             });
}

void bind_copies(DeviceClass& device) {
  // table [vocab, size], tokens [rows], like [rows, size]
  add_method(device, "embed",
             [](TestDevice& d, const WeightOnDevice& table, const Ints& tokens, float scale, const Floats& like) {
               d.ops->embed(table.view(), tokens, tokens.size(0), scale, like);
               return like.fetch();
             });
  // x [.., size], indices [count], like [count, size]
  add_method(device, "gather_rows", [](TestDevice& d, const Floats& x, const Ints& indices, const Floats& like) {
    d.ops->gather_rows(x, indices, indices.size(0), x.size(1), like);
    return like.fetch();
  });
  // x [count, size], indices [count], y [.., size]: y with those rows replaced, or with x added to them
  add_method(device, "scatter_rows",
             [](TestDevice& d, const Floats& x, const Ints& indices, const Floats& y, bool accumulate) {
               d.ops->scatter_rows(x, indices, indices.size(0), x.size(1), y, accumulate);
               return y.fetch();
             });
  // x [rows, heads, head_dim], y [rows, heads, width]: the heads come to the front of y's.
  add_method(device, "copy_heads", [](TestDevice& d, const Floats& x, const Floats& y) {
    d.ops->copy_heads(heads_of(x), heads_of(y, x.size(2)));
    return y.fetch();
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
