// A head's rows one step after the other, as the engine runs them: what its keys and values say of earlier rows counts.
#include <numeric>

#include "device/device.h"
#include "model/cache_plan.h"
#include "model/native_runner.h"
#include "testing/bindings/device.h"

namespace turbomind {

namespace {

constexpr int kMaxRows = 64;
constexpr int kBlockLen = 16;

class Head {
 public:
  Head(const std::string& directory, const std::string& device)
      : spec_(read_model_spec(directory + "/spec.json")),
        runner_(find_device(device).make(1), Shard::whole(spec_), Checkpoint(directory), WeightOptions{},
                CacheType::kFloat32, kMaxRows, 1) {
    CacheShare share;
    share.plan = plan_cache(kBlockLen, runner_.cache_groups({1, kMaxRows, kBlockLen}));
    for (int table = 0; table < share.plan.table_count(); ++table) {
      std::vector<int32_t>& pages = tables_.emplace_back(kMaxRows / kBlockLen);
      std::iota(pages.begin(), pages.end(), share.size.page_count);
      share.size.page_count += static_cast<int>(pages.size());
    }
    runner_.allocate_cache(share);
  }

  // tokens [rows], alongside [rows, width] from a position on -> logits [rows, tokens] and hidden states [rows, size].
  std::pair<Array<float>, Array<float>> run(const std::vector<int32_t>& tokens, const Array<float>& alongside,
                                            int first_position, bool continues_states) {
    const auto rows = static_cast<int>(tokens.size());
    StepInput input;
    input.tokens = tokens;
    input.spans.push_back(
        {.count = rows, .first_position = first_position, .tables = &tables_, .requested = SpanLogits::kAll});
    input.alongside.assign(alongside.data(), alongside.data() + alongside.size());
    input.continues_states = continues_states;
    const StepOutput output = runner_.forward(input);
    Array<float> logits({rows, runner_.traits().vocab_size});
    Array<float> hidden({rows, runner_.traits().hidden_size});
    std::copy_n(output.logits, logits.size(), logits.mutable_data());
    std::copy_n(output.hidden, hidden.size(), hidden.mutable_data());
    return {logits, hidden};
  }

 private:
  ModelSpec spec_;
  NativeRunner runner_;
  PageTables tables_;
};

}  // namespace

void bind_heads(pybind11::module_& m) {
  pybind11::class_<Head>(m, "Head", pybind11::module_local())
      .def(pybind11::init<const std::string&, const std::string&>())
      .def("run", &Head::run);
}

}  // namespace turbomind
