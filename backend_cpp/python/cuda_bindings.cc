#include "python/cuda_bindings.h"

#include <pybind11/stl.h>

#include "kernels/cuda/norm.h"

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
}

}  // namespace turbomind::cuda

PYBIND11_MODULE(TM_CUDA_MODULE, m) {
  m.def("device_count", [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  });
  turbomind::cuda::bind_elementwise(m);
  turbomind::cuda::bind_probes(m);
}
