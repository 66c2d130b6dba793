#include <pybind11/stl.h>

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
  T* hold(const T* elements, size_t count) {
    AlignedBuffer& there = held_.emplace_back(ops_.allocate(count * sizeof(T)));
    ops_.upload(elements, there.size(), there.template as<void>());
    return there.template as<T>();
  }

  template <class T>
  T* hold(const py::dict& given, const char* name, int* count = nullptr) {
    if (!given.contains(name)) return nullptr;
    const auto array = given[name].cast<Array<T>>();
    if (count != nullptr) *count = static_cast<int>(array.shape(0));
    return hold(array.data(), static_cast<size_t>(array.size()));
  }

  SamplingRow read(const py::dict& given) {
    SamplingRow row;
    const auto take = [&](const char* name, auto& field) {
      if (given.contains(name)) field = given[name].cast<std::decay_t<decltype(field)>>();
    };
    take("is_greedy", row.is_greedy);
    take("temperature", row.temperature);
    take("top_k", row.top_k);
    take("top_p", row.top_p);
    take("min_p", row.min_p);
    take("seed", row.seed);
    take("draw", row.draw);
    take("repetition_penalty", row.repetition_penalty);
    take("presence_penalty", row.presence_penalty);
    take("frequency_penalty", row.frequency_penalty);
    row.seen = hold<uint32_t>(given, "seen");
    row.counts = hold<int32_t>(given, "counts");
    row.mask = hold<uint32_t>(given, "mask");
    row.forbidden = hold<int32_t>(given, "forbidden", &row.forbidden_count);
    if (given.contains("biases")) {
      std::vector<TokenBias> biases;
      for (const auto& [token, bias] : given["biases"].cast<std::vector<std::pair<int32_t, float>>>()) {
        biases.push_back({token, bias});
      }
      row.biases = hold(biases.data(), biases.size());
      row.bias_count = static_cast<int>(biases.size());
    }
    return row;
  }

  CudaOperators& ops_;
  std::list<AlignedBuffer> held_;
  std::vector<SamplingRow> rows_;
  std::optional<OnDevice<SamplingRow>> table_;
};

}  // namespace

void bind_sampling(DeviceClass& device) {
  // logits [rows, vocab]; returns tokens [rows] and the logits after penalties, biases and masks.
  device.def("sample", [](TestDevice& d, const std::vector<py::dict>& rows, const Array<float>& logits,
                          const Array<int32_t>& tokens) {
    CudaOperators& ops = operators_of(d);
    const RowsOnDevice wanted(ops, rows);
    const OnDevice<float> values(ops, logits);
    const OnDevice<int32_t> chosen(ops, tokens);
    const int count = size_of(logits, 0);
    const int vocab_size = size_of(logits, 1);
    sample(ops.stream(), ops.scratch(sampling_scratch_bytes(vocab_size, count)), wanted.data(), values.data(),
           vocab_size, count, chosen.data());
    return py::make_tuple(chosen.fetch(tokens), values.fetch(logits));
  });
  // One row's seen [vocab / 32 rounded up] and counts [vocab] after tokens [n] were noted one after another.
  device.def("note_tokens", [](TestDevice& d, const Array<uint32_t>& seen, const Array<int32_t>& counts,
                               const Array<int32_t>& tokens) {
    CudaOperators& ops = operators_of(d);
    const OnDevice<uint32_t> bits(ops, seen);
    const OnDevice<int32_t> times(ops, counts);
    const OnDevice<int32_t> noted(ops, tokens);
    SamplingRow row;
    row.seen = bits.data();
    row.counts = times.data();
    const OnDevice<SamplingRow> table(ops, &row, 1);
    for (py::ssize_t i = 0; i < tokens.size(); ++i) note_tokens(ops.stream(), table.data(), noted.data() + i, 1);
    return py::make_tuple(bits.fetch(seen), times.fetch(counts));
  });
  // logits [rows, vocab], tokens [rows], chosen [rows], top_tokens and top_logprobs [rows, top]
  device.def("log_probabilities", [](TestDevice& d, const Array<float>& logits, const Array<int32_t>& tokens,
                                     const Array<float>& chosen, const Array<int32_t>& top_tokens,
                                     const Array<float>& top_logprobs) {
    CudaOperators& ops = operators_of(d);
    const OnDevice<float> values(ops, logits);
    const OnDevice<int32_t> ids(ops, tokens);
    const OnDevice<float> of_chosen(ops, chosen);
    const OnDevice<int32_t> most_likely(ops, top_tokens);
    const OnDevice<float> of_most_likely(ops, top_logprobs);
    log_probabilities(ops.stream(), values.data(), size_of(logits, 1), size_of(logits, 0), ids.data(),
                      size_of(top_tokens, 1), of_chosen.data(), most_likely.data(), of_most_likely.data());
    return py::make_tuple(of_chosen.fetch(chosen), most_likely.fetch(top_tokens), of_most_likely.fetch(top_logprobs));
  });
}

}  // namespace turbomind::cuda
