#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/sampling/sampling.h"
#include "testing/bindings/cuda_internals.h"

namespace py = pybind11;

namespace turbomind::cuda {

namespace {

// Rows and what they point at, on the device.
class RowsOnDevice {
 public:
  // One dictionary a row, with the names of SamplingRow; arrays where it has pointers.
  RowsOnDevice(CudaOperators& ops, const std::vector<py::dict>& rows) : ops_(ops) {
    for (const py::dict& given : rows) rows_.push_back(read(given));
    table_.emplace(ops, rows_.data(), rows_.size());
  }
  const SamplingRow* data() const { return table_->data(); }

 private:
  template <class T>
  T* copy_to_device(const T* elements, size_t count) {
    AlignedBuffer& there = buffers_.emplace_back(ops_.allocate(count * sizeof(T)));
    ops_.upload(elements, there.size(), there.template as<void>());
    return there.template as<T>();
  }

  template <class T>
  T* copy_to_device(const py::dict& given, const char* name, int* count = nullptr) {
    if (!given.contains(name)) return nullptr;
    const auto array = given[name].cast<Array<T>>();
    if (count != nullptr) *count = static_cast<int>(array.shape(0));
    return copy_to_device(array.data(), static_cast<size_t>(array.size()));
  }

  SamplingRow read(const py::dict& given) {
    SamplingRow row;
    take_sampling_fields(given, row);
    row.seen = copy_to_device<uint32_t>(given, "seen");
    row.counts = copy_to_device<int32_t>(given, "counts");
    row.mask = copy_to_device<uint32_t>(given, "mask");
    row.forbidden = copy_to_device<int32_t>(given, "forbidden", &row.forbidden_count);
    if (given.contains("biases")) {
      std::vector<TokenBias> biases;
      for (const auto& [token, bias] : given["biases"].cast<std::vector<std::pair<int32_t, float>>>()) {
        biases.push_back({token, bias});
      }
      row.biases = copy_to_device(biases.data(), biases.size());
      row.bias_count = static_cast<int>(biases.size());
    }
    return row;
  }

  CudaOperators& ops_;
  std::list<AlignedBuffer> buffers_;
  std::vector<SamplingRow> rows_;
  std::optional<OnDevice<SamplingRow>> table_;
};

}  // namespace

void bind_sampling(DeviceClass& device) {
  // logits [rows, vocab]; returns tokens [rows] and the logits after penalties, biases and masks.
  add_method(device, "sample",
             [](TestDevice& d, const std::vector<py::dict>& rows, const Floats& logits, const Ints& tokens) {
               CudaOperators& ops = operators_of(d);
               const RowsOnDevice sampling(ops, rows);
               const int count = logits.size(0);
               const int vocab_size = logits.size(1);
               sample(ops.stream(), ops.scratch(sampling_scratch_bytes(vocab_size, count)), sampling.data(), logits,
                      vocab_size, count, tokens);
               return py::make_tuple(tokens.fetch(), logits.fetch());
             });
  // One row's seen [vocab / 32 rounded up] and counts [vocab] after tokens [n] were noted one after another.
  add_method(device, "record_tokens",
             [](TestDevice& d, const OnDevice<uint32_t>& seen, const Ints& counts, const Ints& tokens) {
               CudaOperators& ops = operators_of(d);
               SamplingRow row;
               row.seen = seen;
               row.counts = counts;
               const OnDevice<SamplingRow> table(ops, &row, 1);
               for (int i = 0; i < tokens.size(0); ++i) record_tokens(ops.stream(), table.data(), tokens + i, 1);
               return py::make_tuple(seen.fetch(), counts.fetch());
             });
  // logits [rows, vocab], tokens [rows], chosen [rows], top_tokens and top_logprobs [rows, top]
  add_method(device, "log_probabilities",
             [](TestDevice& d, const Floats& logits, const Ints& tokens, const Floats& chosen, const Ints& top_tokens,
                const Floats& top_logprobs) {
               log_probabilities(operators_of(d).stream(), logits, logits.size(1), logits.size(0), tokens,
                                 top_tokens.size(1), chosen, top_tokens, top_logprobs);
               return py::make_tuple(chosen.fetch(), top_tokens.fetch(), top_logprobs.fetch());
             });
}

}  // namespace turbomind::cuda
