#include "testing/bindings/cuda_bindings.h"

#include <pybind11/stl.h>

#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/norm.h"
#include "kernels/cuda/elementwise/rope.h"
#include "python/engine_bindings.h"

namespace py = pybind11;

namespace turbomind::cuda {

void bind_elementwise(py::module_& m) {
  // x [rows, size]
  m.def("norm", [](const Array<float>& x, bool is_layer_norm, const Array<float>& weight,
                   const OptionalArray<float>& bias, float eps) {
    const OnDevice<float> rows(x);
    const OnDevice<float> scale(weight);
    const OnDevice<float> shift(bias);
    const NormWeight view{is_layer_norm ? NormKind::kLayer : NormKind::kRms, eps, scale.data(), shift.data()};
    norm(nullptr, view, rows.data(), static_cast<int>(x.shape(0)), static_cast<int>(x.shape(1)), rows.data());
    return rows.fetch(x);
  });
  // x [rows, width], of which heads * head_dim floats from `first` are heads
  m.def("norm_heads", [](const Array<float>& x, int first, int heads, int head_dim, bool is_layer_norm,
                         const Array<float>& weight, float eps) {
    const OnDevice<float> rows(x);
    const OnDevice<float> scale(weight);
    norm_heads(nullptr, {is_layer_norm ? NormKind::kLayer : NormKind::kRms, eps, scale.data(), nullptr},
               {rows.data() + first, static_cast<int>(x.shape(0)), static_cast<size_t>(x.shape(1)), heads,
                static_cast<size_t>(head_dim), head_dim});
    return rows.fetch(x);
  });
  // x [rows, size], or gated [rows, 2 size]; y of the result's shape
  m.def("activate", [](const Array<float>& x, int activation, bool is_gated, const Array<float>& y) {
    const OnDevice<float> input(x);
    const OnDevice<float> output(y);
    (is_gated ? activate_gated : activate)(nullptr, static_cast<Activation>(activation), input.data(),
                                           static_cast<int>(y.shape(0)), static_cast<int>(y.shape(1)), output.data());
    return output.fetch(y);
  });
  m.def("scale_and_cap", [](const Array<float>& x, float scale, float softcap) {
    const OnDevice<float> values(x);
    scale_and_cap(nullptr, scale, softcap, static_cast<int>(x.shape(0)), static_cast<int>(x.shape(1)), values.data());
    return values.fetch(x);
  });
  m.def("add_scaled", [](float scale, const Array<float>& x, const Array<float>& y) {
    const OnDevice<float> values(x);
    const OnDevice<float> sums(y);
    add_scaled(nullptr, scale, values.data(), static_cast<int>(x.shape(0)), static_cast<int>(x.shape(1)), sums.data());
    return sums.fetch(y);
  });
  m.def("clamp", [](float limit, const Array<float>& x) {
    const OnDevice<float> values(x);
    clamp(nullptr, limit, static_cast<int>(x.shape(0)), static_cast<int>(x.shape(1)), values.data());
    return values.fetch(x);
  });
  // positions [rows], sets [rows] or none, frequencies [sets, pairs]; cosine, sine [rows, pairs]
  m.def("rope_table", [](const Array<int32_t>& positions, const OptionalArray<int32_t>& sets,
                         const Array<float>& frequencies, float scale, const Array<float>& like) {
    const OnDevice<int32_t> at(positions);
    const OnDevice<int32_t> set_of(sets);
    const OnDevice<float> speeds(frequencies);
    const OnDevice<float> cosine(like);
    const OnDevice<float> sine(like);
    rope_table(nullptr, {at.data(), set_of.data(), speeds.data(), static_cast<int>(frequencies.shape(1)), scale},
               static_cast<int>(positions.shape(0)), cosine.data(), sine.data());
    return py::make_tuple(cosine.fetch(like), sine.fetch(like));
  });
  // x [rows, heads, head_dim]; cosine, sine [rows, pairs]
  m.def("rope", [](const Array<float>& x, const Array<float>& cosine, const Array<float>& sine, bool is_interleaved,
                   const OptionalArray<float>& factors) {
    const OnDevice<float> values(x);
    const OnDevice<float> cosines(cosine);
    const OnDevice<float> sines(sine);
    const OnDevice<float> row_factors(factors);
    const auto head_dim = static_cast<int>(x.shape(2));
    rope(nullptr, {cosines.data(), sines.data(), static_cast<int>(cosine.shape(1)), is_interleaved},
         {values.data(), static_cast<int>(x.shape(0)), static_cast<size_t>(x.shape(1) * head_dim),
          static_cast<int>(x.shape(1)), static_cast<size_t>(head_dim), head_dim},
         row_factors.data());
    return values.fetch(x);
  });
}

}  // namespace turbomind::cuda

PYBIND11_MODULE(TM_CUDA_MODULE, m) {
  turbomind::bind_engine(m);
  m.def("device_count", [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  });
  turbomind::cuda::bind_attention(m);
  turbomind::cuda::bind_elementwise(m);
  turbomind::cuda::bind_linear(m);
  turbomind::cuda::bind_moe(m);
  turbomind::cuda::bind_ranks(m);
  turbomind::cuda::bind_sampling(m);
  turbomind::cuda::bind_probes(m);
#ifdef TM_CUDA_EMULATED
  turbomind::cuda::bind_faults(m);
#endif
}
