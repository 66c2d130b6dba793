#include "engine/fields/engine_settings.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"

namespace turbomind {

namespace {

void reject_unknown(const Json& given, EngineSettings& settings) {
  std::vector<std::string> known;
  visit_settings(settings, [&](const char* name, auto&, const Limits&) { known.emplace_back(name); });
  for (const auto& [key, value] : given.as_object()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    throw invalid_argument("the engine has no setting " + key + did_you_mean(key, known));
  }
}

void read(const Json& value, const char* name, bool& field) {
  if (!value.is_bool()) throw invalid_argument(std::string(name) + " must be true or false, got " + value.dump());
  field = value.as_bool();
}

void read(const Json& value, const char* name, std::string& field) {
  if (!value.is_string()) throw invalid_argument(std::string(name) + " must be a text, got " + value.dump());
  field = value.as_string();
}

void read(const Json& value, const char* name, double& field) {
  if (!value.is_number()) throw invalid_argument(std::string(name) + " must be a number, got " + value.dump());
  field = value.as_double();
}

void read(const Json& value, const char* name, int& field) {
  double number = 0;
  read(value, name, number);
  field = static_cast<int>(std::clamp(number, -2147483647.0, 2147483647.0));
  if (field != number) throw invalid_argument(std::string(name) + " must be a whole number, got " + value.dump());
}

void read(const Json& value, const char* name, Json& field) {
  const bool is_word = field.is_string() && value.is_string();  // where the default is a word, there are others
  if (!value.is_object() && !is_word) {
    throw invalid_argument(std::string(name) + " must be a JSON object, got " + value.dump());
  }
  field = value;
}

void read(const Json& value, const char* name, std::map<std::string, std::string>& field) {
  if (!value.is_object()) throw invalid_argument(std::string(name) + " must be a JSON object, got " + value.dump());
  field.clear();
  for (const auto& [key, text] : value.as_object()) read(text, name, field[key]);
}

}  // namespace

void read_settings(const Json& given, EngineSettings& settings) {
  if (!given.is_object()) throw invalid_argument("engine settings must be a JSON object, got " + given.dump());
  reject_unknown(given, settings);
  visit_settings(settings, [&](const char* name, auto& field, const Limits& limits) {
    if (const Json* value = given.find(name)) {
      read(*value, name, field);
      check_limits(name, field, limits);
    }
  });
}

}  // namespace turbomind
