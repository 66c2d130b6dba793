// JSON reader of a model's description: each field by its type and the rule of its declaration.
#pragma once

#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/spec/spec_rules.h"

namespace turbomind {

// A visitor of visit_fields (model_spec_fields.h). Throws Error that names the field.
class SpecReader {
 public:
  // `path` is what is in front of fields' names in errors; `layers` the number of the model's, which may be a field
  // that is visited before the first list of a value a layer.
  SpecReader(const Json& json, std::string path, const int& layers)
      : json_(json), path_(std::move(path)), layers_(layers) {}

  template <class T, class... Rules>
  void required(const char* key, T& to, const Rules&... rules) const {
    if (json_.find(key) == nullptr) throw invalid_argument(path_ + key + " is missing");
    optional(key, to, rules...);
  }

  // Missing and null members keep their values.
  template <class T, class Rule>
  void optional(const char* key, T& to, const Rule& rule) const {
    if (const Json* given = json_.find(key)) read(*given, path_ + key, to, rule);
  }

  template <class T, class Rule, class Value>
  void optional(const char* key, std::vector<T>& to, const Rule& rule, const PerLayer<Value>& per_layer) const {
    optional(key, to, rule);
    if (to.empty()) to.assign(static_cast<size_t>(layers_), per_layer.value);
    if (to.size() != static_cast<size_t>(layers_)) {
      throw invalid_argument(path_ + key + " must have a value for each of " + std::to_string(layers_) +
                             " layers, got " + std::to_string(to.size()));
    }
  }

 private:
  template <class T, class Rule>
  void read(const Json& json, const std::string& name, std::optional<T>& to, const Rule& rule) const {
    read(json, name, to.emplace(), rule);
  }

  template <class T, class Rule>
  void read(const Json& json, const std::string& name, std::vector<T>& to, const Rule& rule) const {
    for (const Json& item : json.as_array()) {
      T value{};
      read(item, name + "[" + std::to_string(to.size()) + "]", value, rule);
      to.push_back(std::move(value));
    }
  }

  static void read(const Json& json, const std::string& name, int& to, const Whole& rule) {
    const int64_t value = json.as_int();
    if (value < rule.low || value > rule.high) {
      throw invalid_argument(name + " must be a whole number from " + std::to_string(rule.low) + " to " +
                             std::to_string(rule.high) + ", got " + std::to_string(value));
    }
    to = static_cast<int>(value);
  }

  static void read(const Json& json, const std::string& name, std::floating_point auto& to, const Real& rule) {
    const double value = json.as_double();
    if (!std::isfinite(value) || value < rule.low || (rule.excludes_low && value == rule.low)) {
      throw invalid_argument(name + " must be a finite number in its range, got " + std::to_string(value));
    }
    to = static_cast<std::remove_reference_t<decltype(to)>>(value);
  }

  template <class Enum, size_t n>
  static void read(const Json& json, const std::string& name, Enum& to,
                   const std::array<std::pair<std::string_view, Enum>, n>& choices) {
    const std::string& given = json.as_string();
    std::string known;
    for (const auto& [choice, value] : choices) {
      if (given == choice) {
        to = value;
        return;
      }
      known += (known.empty() ? "" : ", ") + std::string(choice);
    }
    throw invalid_argument(name + " must be one of " + known + ", got " + given);
  }

  static void read(const Json& json, const std::string&, bool& to, const Anything&) { to = json.as_bool(); }
  static void read(const Json& json, const std::string&, std::string& to, const Anything&) { to = json.as_string(); }
  static void read(const Json& json, const std::string& name, int& to, const Anything&) {
    read(json, name, to, Whole{INT32_MIN, INT32_MAX});
  }

  // A part of the description.
  template <class Part>
    requires std::is_aggregate_v<Part>
  void read(const Json& json, const std::string& name, Part& to, const Anything&) const {
    visit_fields(to, SpecReader(json, name + ".", layers_));
  }

  const Json& json_;
  std::string path_;
  const int& layers_;
};

}  // namespace turbomind
