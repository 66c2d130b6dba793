#include <pybind11/stl.h>

#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/sampling/sampling.h"
#include "testing/bindings/cuda_bindings.h"

namespace py = pybind11;

namespace turbomind::cuda {

namespace {

// Rows and what they point at, on the device.
class RowsOnDevice {
 public:
  // One dictionary a row, with the names of SamplingRow; arrays where it has pointers.
  explicit RowsOnDevice(const std::vector<py::dict>& rows) {
    for (const py::dict& given : rows) rows_.push_back(read(given));
    table_ = copy_to_device(rows_.data(), rows_.size() * sizeof(SamplingRow));
  }
  const SamplingRow* data() const { return table_.as<SamplingRow>(); }

 private:
  template <class T>
  T* hold(const py::dict& given, const char* name, int* count = nullptr) {
    if (!given.contains(name)) return nullptr;
    const auto array = given[name].cast<Array<T>>();
    if (count != nullptr) *count = static_cast<int>(array.shape(0));
    held_.push_back(copy_to_device(array.data(), static_cast<size_t>(array.nbytes())));
    return held_.back().template as<T>();
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
      held_.push_back(copy_to_device(biases.data(), biases.size() * sizeof(TokenBias)));
      row.biases = held_.back().as<TokenBias>();
      row.bias_count = static_cast<int>(biases.size());
    }
    return row;
  }

  std::list<AlignedBuffer> held_;
  std::vector<SamplingRow> rows_;
  AlignedBuffer table_;
};

}  // namespace

void bind_sampling(py::module_& m) {
  // logits [rows, vocab]; returns tokens [rows] and the logits after penalties, biases and masks.
  m.def("sample", [](const std::vector<py::dict>& rows, const Array<float>& logits, const Array<int32_t>& tokens) {
    const RowsOnDevice wanted(rows);
    const OnDevice<float> values(logits);
    const OnDevice<int32_t> chosen(tokens);
    const int count = static_cast<int>(logits.shape(0));
    const int vocab_size = static_cast<int>(logits.shape(1));
    const AlignedBuffer memory = allocate(sampling_scratch_bytes(vocab_size, count));
    sample(nullptr, {memory.as<void>(), memory.size()}, wanted.data(), values.data(), vocab_size, count, chosen.data());
    return py::make_tuple(chosen.fetch(tokens), values.fetch(logits));
  });
  // One row's seen [vocab / 32 rounded up] and counts [vocab] after tokens [n] were noted one after another.
  m.def("note_tokens", [](const Array<uint32_t>& seen, const Array<int32_t>& counts, const Array<int32_t>& tokens) {
    const OnDevice<uint32_t> bits(seen);
    const OnDevice<int32_t> times(counts);
    const OnDevice<int32_t> noted(tokens);
    SamplingRow row;
    row.seen = bits.data();
    row.counts = times.data();
    const AlignedBuffer table = copy_to_device(&row, sizeof(row));
    for (py::ssize_t i = 0; i < tokens.size(); ++i) {
      note_tokens(nullptr, table.as<SamplingRow>(), noted.data() + i, 1);
    }
    return py::make_tuple(bits.fetch(seen), times.fetch(counts));
  });
  // logits [rows, vocab], tokens [rows], chosen [rows], top_tokens and top_logprobs [rows, top]
  m.def("log_probabilities", [](const Array<float>& logits, const Array<int32_t>& tokens, const Array<float>& chosen,
                                const Array<int32_t>& top_tokens, const Array<float>& top_logprobs) {
    const OnDevice<float> values(logits);
    const OnDevice<int32_t> ids(tokens);
    const OnDevice<float> of_chosen(chosen);
    const OnDevice<int32_t> likeliest(top_tokens);
    const OnDevice<float> of_likeliest(top_logprobs);
    log_probabilities(nullptr, values.data(), static_cast<int>(logits.shape(1)), static_cast<int>(logits.shape(0)),
                      ids.data(), static_cast<int>(top_tokens.shape(1)), of_chosen.data(), likeliest.data(),
                      of_likeliest.data());
    return py::make_tuple(of_chosen.fetch(chosen), likeliest.fetch(top_tokens), of_likeliest.fetch(top_logprobs));
  });
}

}  // namespace turbomind::cuda
