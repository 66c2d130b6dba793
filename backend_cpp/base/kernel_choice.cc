#include "base/kernel_choice.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr const char* kVariable = "LMDEPLOY_CUDA_KERNELS";
constexpr std::array<std::string_view, 4> kNames = {"library", "own", "torch", "off"};

std::optional<KernelSource> source_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<KernelSource>(found - kNames.begin());
}

bool has(const KernelOperator& op, KernelSource source) {
  return std::ranges::find(op.order, source) != op.order.end();
}

Error choice_error(const std::string& reason) {
  return invalid_argument(std::string(kVariable) + " is " + std::getenv(kVariable) + ": " + reason);
}

// One part between commas, for an operator of an engine; checked for all.
std::optional<KernelSource> read_part(std::string_view part, std::string_view engine, std::string_view name) {
  const size_t equals = part.find('=');
  const std::string_view of = equals == std::string_view::npos ? std::string_view() : part.substr(0, equals);
  const std::string text(equals == std::string_view::npos ? part : part.substr(equals + 1));
  const std::optional<KernelSource> source = source_named(text);
  if (!source || (of.empty() && *source == KernelSource::kOff)) {
    throw choice_error(text + " is not library, own or torch" + (of.empty() ? "" : ", nor off"));
  }
  std::string choices;
  bool is_known = of.empty();
  bool is_there = of.empty();
  std::optional<KernelSource> requested;
  for (const KernelOperator& op : kernel_operators()) {
    if (!of.empty() && op.name != of) continue;
    is_known = true;
    for (const KernelSource candidate : op.order) (choices += choices.empty() ? "" : ", ") += name_of(candidate);
    if (!has(op, *source)) continue;
    is_there = true;
    if (op.engine == engine && op.name == name) requested = source;
  }
  if (!is_known) throw choice_error("there is no operator " + std::string(of));
  if (!is_there) throw choice_error(std::string(of) + " can be " + choices + ", not " + text);
  return requested;
}

}  // namespace

std::string_view name_of(KernelSource source) {
  return kNames[static_cast<size_t>(source)];
}

const std::vector<KernelOperator>& kernel_operators() {
  using enum KernelSource;
  static const std::vector<KernelOperator> kOperators = {
      {"linear", "turbomind", "linear layers", {kLibrary, kNative}, ""},
      {"scales", "turbomind", "fp8 linear layers from 192 tokens on", {kLibrary, kNative}, "our kernel"},
      {"experts", "turbomind", "mixtures of experts from 32 tokens an expert on", {kLibrary, kNative}, "our kernel"},
      {"prompts", "turbomind", "attention of prompts", {kLibrary, kNative}, "our kernel"},
      {"latents", "turbomind", "latent attention", {kLibrary, kNative}, "our kernel"},
      {"sampling", "turbomind", "choosing tokens on the GPU", {kNative, kOff}, ""},
      {"graphs", "turbomind", "decoding as CUDA graphs", {kNative, kOff}, ""},
      {"overlap", "turbomind", "programmatic dependent launch", {kNative, kOff}, ""},
      {"attention", "pytorch", "attention over the paged cache", {kNative, kTorch}, "float64"},
      {"codes", "pytorch", "linear layers on AWQ, int8 and fp8 codes", {kNative, kTorch}, "float64"},
      {"sampling", "pytorch", "choosing tokens on the GPU", {kTorch, kOff}, "the same on the CPU"},
      {"graphs", "pytorch", "decoding as CUDA graphs", {kTorch, kOff}, ""},
  };
  return kOperators;
}

std::optional<KernelSource> requested_kernels(std::string_view engine, std::string_view name) {
  const char* variable = std::getenv(kVariable);
  std::string_view rest = variable != nullptr ? variable : "";
  std::optional<KernelSource> requested;
  while (!rest.empty()) {
    const size_t size = std::min(rest.find(','), rest.size());
    if (const auto choice = read_part(rest.substr(0, size), engine, name)) requested = choice;
    rest.remove_prefix(std::min(size + 1, rest.size()));
  }
  return requested;
}

}  // namespace turbomind
