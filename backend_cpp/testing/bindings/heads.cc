// A head's rows one step after the other, as the engine runs them: what its keys and values say of earlier rows counts.
#include <pybind11/stl.h>

#include <numeric>

#include "model/native_runner.h"
#include "testing/bindings/device.h"

namespace turbomind {

namespace {

constexpr int kMostRows = 64;
constexpr int kBlockLen = 16;

class Head {
 public:
  explicit Head(const std::string& directory)
      : spec_(ModelSpec::from_file(directory + "/spec.json")),
        runner_(make_operators("cpu", 1), Shard::whole(spec_), Checkpoint(directory), WeightOptions{},
                CacheType::kFloat32, kMostRows, 1),
        blocks_(kMostRows / kBlockLen) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    runner_.allocate_cache({static_cast<int>(blocks_.size()), kBlockLen});
  }

  // tokens [rows], beside [rows, width] from a position on -> logits [rows, tokens] and hidden states [rows, size].
  std::pair<Array<float>, Array<float>> run(const std::vector<int32_t>& tokens, const Array<float>& beside,
                                            int first_position, bool is_own) {
    const auto rows = static_cast<int>(tokens.size());
    StepInput input;
    input.tokens = tokens;
    input.spans.push_back(
        {.count = rows, .first_position = first_position, .blocks = &blocks_, .wanted = SpanRows::kAll});
    input.beside.assign(beside.data(), beside.data() + beside.size());
    input.is_beside_own = is_own;
    const StepOutput output = runner_.forward(input);
    Array<float> logits({rows, runner_.vocab_size()});
    Array<float> hidden({rows, runner_.hidden_size()});
    std::copy_n(output.logits, logits.size(), logits.mutable_data());
    std::copy_n(output.hidden, hidden.size(), hidden.mutable_data());
    return {logits, hidden};
  }

 private:
  ModelSpec spec_;
  NativeRunner runner_;
  std::vector<int32_t> blocks_;
};

}  // namespace

void bind_heads(pybind11::module_& m) {
  pybind11::class_<Head>(m, "Head", pybind11::module_local())
      .def(pybind11::init<const std::string&>())
      .def("run", &Head::run);
}

}  // namespace turbomind
