#include <list>
#include <vector>

#include "kernels/lora.h"
#include "testing/bindings/device.h"

namespace py = pybind11;

namespace turbomind {

namespace {

// Transposed B, and where it belongs: first output, first shrunk number, scale.
using GivenPart = std::tuple<py::array, int, int, float>;
// A [rank, in_features], and the parts of B.
using GivenAdapter = std::pair<py::array, std::vector<GivenPart>>;

OnDevice<std::byte> on_device(Operators& ops, const py::array& array) {
  return {ops, static_cast<const std::byte*>(array.data()), static_cast<size_t>(array.nbytes())};
}

// Adapters of two layers in a device's memory, of which the first has none.
class AdaptersOnDevice {
 public:
  static constexpr int kLayer = 1;

  AdaptersOnDevice(Operators& ops, const std::vector<GivenAdapter>& adapters, int format) {
    for (const auto& [down, parts] : adapters) {
      LoraWeight weight;
      weight.down = keep(on_device(ops, down));
      weight.rank = static_cast<int>(down.shape(0));
      weight.format = static_cast<WeightFormat>(format);
      std::vector<LoraPart> views;
      for (const auto& [up, first_out, first_rank, scale] : parts) {
        views.push_back({keep(on_device(ops, up)), first_out, static_cast<int>(up.shape(1)), first_rank,
                         static_cast<int>(up.shape(0)), scale});
      }
      weight.part_count = static_cast<int>(views.size());
      parts_.emplace_back(ops, views.data(), views.size());
      weight.parts = parts_.back().data();
      const LoraWeight layers[] = {{}, weight};
      layers_.emplace_back(ops, layers, 2);
      tables_.push_back(layers_.back().data());
      max_rank = std::max(max_rank, weight.rank);
    }
  }
  const LoraWeight* table(int adapter) const {
    return adapter < 0 ? nullptr : tables_.at(static_cast<size_t>(adapter));
  }

  int max_rank = 0;

 private:
  const void* keep(OnDevice<std::byte>&& bytes) {
    bytes_.push_back(std::move(bytes));
    return bytes_.back().data();
  }

  std::list<OnDevice<std::byte>> bytes_;
  std::list<OnDevice<LoraPart>> parts_;
  std::list<OnDevice<LoraWeight>> layers_;
  std::vector<const LoraWeight*> tables_;
};

}  // namespace

void bind_lora(DeviceClass& device) {
  // x [rows, in_features], y [rows, out_features]: y with what each row's adapter adds, -1 being none.
  add_method(device, "lora",
             [](TestDevice& d, const Floats& x, const Floats& y, const std::vector<GivenAdapter>& adapters,
                const std::vector<int>& adapter_of_row, int format) {
               const AdaptersOnDevice all(*d.ops, adapters, format);
               std::vector<const LoraWeight*> tables;
               for (const int adapter : adapter_of_row) tables.push_back(all.table(adapter));
               const OnDevice<const LoraWeight*> table_of_row(*d.ops, tables.data(), tables.size());
               const std::vector<float> unset(static_cast<size_t>(x.size(0) * all.max_rank), 1e30f);
               const Floats shrunk(*d.ops, unset.data(), unset.size());
               const LoraRows rows{table_of_row, AdaptersOnDevice::kLayer, x.size(0), all.max_rank};
               d.run(kLoraShrink, rows, x, x.size(1), shrunk);
               d.run(kLoraExpand, rows, shrunk, y.size(1), y);
               return y.fetch();
             });
}

}  // namespace turbomind
