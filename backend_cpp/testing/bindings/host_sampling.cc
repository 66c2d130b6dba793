// Tokens as the engine chooses them on the host, for what chooses them elsewhere.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "engine/generation/sampler.h"
#include "kernels/sampling.h"
#include "testing/bindings/device.h"

namespace py = pybind11;

namespace turbomind {

namespace {

// Sets the field `name` where a dictionary has it.
template <class T>
void take_field(const pybind11::dict& given, const char* name, T& field) {
  if (given.contains(name)) field = given[name].template cast<T>();
}

// One dictionary a row: the fields of SamplingParams, `prompt` and `response` tokens, `biases`, `forbidden` tokens and
// `mask` [vocab / 32 rounded up]. logits [rows, vocab]. Returns the tokens, and the logits that they were drawn from.
py::tuple choose_on_host(const std::vector<py::dict>& rows, const Array<float>& logits) {
  const int vocab_size = size_of(logits, 1);
  Sampler sampler(vocab_size);
  std::vector<int32_t> tokens;
  Array<float> changed({logits.shape(0), logits.shape(1)});
  std::copy_n(logits.data(), logits.size(), changed.mutable_data());
  for (size_t row = 0; row < rows.size(); ++row) {
    const py::dict& given = rows[row];
    SamplingParams params;
    std::vector<int32_t> prompt;
    std::vector<int32_t> response;
    std::vector<int32_t> forbidden;
    std::vector<int32_t> mask;
    Penalties::Biases biases;
    take_field(given, "is_greedy", params.is_greedy);
    take_field(given, "seed", params.seed);
    take_field(given, "draw", params.draw);
    visit_sampling(params, [&](const char* name, auto& field, const auto&) { take_field(given, name, field); });
    take_field(given, "prompt", prompt);
    take_field(given, "response", response);
    take_field(given, "biases", biases);
    take_field(given, "forbidden", forbidden);
    take_field(given, "mask", mask);
    float* values = changed.mutable_data() + row * static_cast<size_t>(vocab_size);
    const PromptTokens prompt_tokens(params, prompt, vocab_size);
    Penalties penalties(params, prompt_tokens, biases);
    for (const int32_t token : response) penalties.record(token);
    penalties.apply(values);
    for (const int32_t token : forbidden) values[token] = -std::numeric_limits<float>::infinity();
    if (!mask.empty()) apply_mask(mask.data(), vocab_size, values);
    tokens.push_back(sampler.sample(values, params));
  }
  return py::make_tuple(tokens, changed);
}

// Of a token, and of the `top` most likely ones.
py::tuple host_log_probabilities(const Array<float>& logits, int32_t token, int top) {
  const TokenLogprobs found = log_probabilities(logits.data(), size_of(logits, 0), token, top);
  return py::make_tuple(found.chosen, found.top);
}

}  // namespace

void bind_host_sampling(py::module_& m) {
  m.def("choose_on_host", &choose_on_host);
  m.def("host_log_probabilities", &host_log_probabilities);
  m.def("uniform", [](uint64_t seed, uint64_t counter) { return uniform(seed, counter); });
}

}  // namespace turbomind
