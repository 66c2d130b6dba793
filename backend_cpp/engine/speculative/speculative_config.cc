#include "engine/speculative/speculative_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr int kDefaultDrafts = 16;
constexpr std::array<std::string_view, 4> kHeadMethods{"mtp", "deepseek_mtp", "eagle", "eagle3"};
constexpr int kDefaultSharedTokens = 1 << 16;

int whole(const Json& setting, const char* name, int fallback, int low, int high) {
  const Json* value = setting.find(name);
  if (value == nullptr) return fallback;
  const int64_t number = value->as_int();
  if (number < low || number > high) {
    throw invalid_argument(std::string("speculative_config: ") + name + " must be " + std::to_string(low) + " to " +
                           std::to_string(high) + ", got " + std::to_string(number));
  }
  return static_cast<int>(number);
}

void read_method(const Json& setting, SpeculativeConfig& config) {
  const Json* method = setting.find("method");
  const Json* model = setting.find("model");
  if (model != nullptr) config.model = model->as_string();
  const std::string name = method != nullptr ? method->as_string() : model != nullptr ? "draft_model" : "ngram";
  config.method = name;
  config.is_head = std::ranges::find(kHeadMethods, name) != kHeadMethods.end();
  config.has_model = config.is_head || name == "draft_model";
  if (!config.has_model && name != "ngram") {
    throw invalid_argument("speculative_config: there is no method " + name);
  }
}

}  // namespace

SpeculativeConfig SpeculativeConfig::of(const Json& setting, bool is_automatic) {
  SpeculativeConfig config;
  if (setting.is_null()) return config;
  if (setting.is_string()) {
    const std::string word = setting.as_string();
    if (word != "auto" && word != "none") {
      throw invalid_argument("speculative_config must be auto, none or a JSON object, got " + setting.dump());
    }
    return word == "auto" && is_automatic ? of(Json::parse(R"({"method": "ngram"})"), false) : config;
  }
  read_method(setting, config);
  config.weight_bits = whole(setting, "weight_bits", 0, 4, 8);
  if (config.weight_bits != 0 && config.weight_bits != 4 && config.weight_bits != 8) {
    throw invalid_argument("speculative_config: weight_bits must be 4 or 8");
  }
  config.num_speculative_tokens = whole(setting, "num_speculative_tokens", kDefaultDrafts, 1, kMaxDrafts);
  if (const Json* adaptive = setting.find("adaptive")) config.is_adaptive = adaptive->as_bool();
  config.prompt_lookup_min = whole(setting, "prompt_lookup_min", config.prompt_lookup_min, 1, 64);
  config.prompt_lookup_max = whole(setting, "prompt_lookup_max", config.prompt_lookup_max, 1, 64);
  config.shared_tokens = whole(setting, "shared_tokens", kDefaultSharedTokens, 0, 1 << 24);
  if (config.prompt_lookup_min > config.prompt_lookup_max) {
    throw invalid_argument("speculative_config: prompt_lookup_min is larger than prompt_lookup_max");
  }
  return config;
}

}  // namespace turbomind
