#include "triton/model_parameters.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/json.h"
#include "base/nearest.h"

namespace turbomind {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kDefaultDrain{20};  // Triton's own --exit-timeout-secs is 30
const std::vector<std::string> kParameters = {"model_path",     "model_name",   "engine_config", "drain_seconds",
                                              "unload_seconds", "idle_timeout", "models_memory", "served_model_name"};

std::string name_of(TRITONBACKEND_Model* model) {
  const char* name = nullptr;
  check(TRITONBACKEND_ModelName(model, &name));
  return name;
}

uint64_t version_of(TRITONBACKEND_Model* model) {
  uint64_t version = 0;
  check(TRITONBACKEND_ModelVersion(model, &version));
  return version;
}

std::string version_directory(TRITONBACKEND_Model* model) {
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* location = nullptr;
  check(TRITONBACKEND_ModelRepository(model, &type, &location));
  return std::string(location) + "/" + std::to_string(version_of(model));
}

Json model_config(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = nullptr;
  check(TRITONBACKEND_ModelConfig(model, 1, &message));
  const MessageHandle owned(message);
  const char* text = nullptr;
  size_t bytes = 0;
  check(TRITONSERVER_MessageSerializeToJson(message, &text, &bytes));
  return Json::parse(std::string_view(text, bytes));
}

std::string variable_of(const std::string& key) {
  std::string variable = "LMDEPLOY_" + key;
  for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

std::string from_file(const Json& config, const std::string& key) {
  const Json* parameters = config.find("parameters");
  const Json* entry = parameters != nullptr ? parameters->find(key) : nullptr;
  return entry != nullptr ? entry->at("string_value").as_string() : "";
}

// parameters[key], unless the environment says otherwise.
std::string parameter(const Json& config, const std::string& key) {
  const char* value = std::getenv(variable_of(key).c_str());
  return value != nullptr ? value : from_file(config, key);
}

void reject_unknown_parameters(const Json& config) {
  const Json* parameters = config.find("parameters");
  if (parameters == nullptr) return;
  for (const auto& [key, value] : parameters->as_object()) {
    if (std::find(kParameters.begin(), kParameters.end(), key) != kParameters.end()) continue;
    throw invalid_argument("turbomind/config.pbtxt: there is no parameter " + key + did_you_mean(key, kParameters));
  }
}

void read_settings(const std::string& text, const std::string& source, EngineSettings& settings) {
  if (text.empty()) return;
  try {
    read_settings(Json::parse(text), settings);
  } catch (const Error& error) {
    throw Error(error.code(), source + ": " + error.what());
  }
}

// The environment's settings win over those of the file, one by one.
EngineSettings engine_settings(const Json& config) {
  EngineSettings settings;
  read_settings(from_file(config, "engine_config"), "engine_config of turbomind/config.pbtxt", settings);
  const std::string variable = variable_of("engine_config");
  const char* from_environment = std::getenv(variable.c_str());
  read_settings(from_environment != nullptr ? from_environment : "", variable, settings);
  return settings;
}

// Of a parameter that is a number of at least `min`; none: it is empty.
std::optional<double> number(const Json& config, const std::string& key, const std::string& what, double min = 0) {
  const std::string given = parameter(config, key);
  if (given.empty()) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(given.c_str(), &end);
  if (*end != '\0' || !(number >= min)) {
    const std::string range = min == 0 ? " >= 0" : "";
    throw invalid_argument(key + " must be a number of " + what + range + ", got " + given);
  }
  return number;
}

std::optional<size_t> bytes(const Json& config, const std::string& key) {
  const std::optional<double> given = number(config, key, "bytes");
  // More than a double counts exactly is as good as no limit.
  return given && *given < 1e18 ? std::optional(static_cast<size_t>(*given)) : std::nullopt;
}

std::optional<Seconds> seconds(const Json& config, const std::string& key) {
  const std::optional<double> given = number(config, key, "seconds");
  return given ? std::optional(Seconds(*given)) : std::nullopt;
}

}  // namespace

ModelParameters read_parameters(TRITONBACKEND_Model* model) {
  const Json config = model_config(model);
  reject_unknown_parameters(config);
  ModelParameters parameters;
  parameters.name = name_of(model);
  parameters.version = std::to_string(version_of(model));
  parameters.version_directory = version_directory(model);
  parameters.model_path = parameter(config, "model_path");
  const std::string served_model_name = parameter(config, "served_model_name");
  parameters.served_name = served_model_name.empty() ? parameter(config, "model_name") : served_model_name;
  parameters.settings = engine_settings(config);
  parameters.grace = {seconds(config, "drain_seconds").value_or(kDefaultDrain), seconds(config, "unload_seconds")};
  const auto idle_timeout = number(config, "idle_timeout", "seconds", -std::numeric_limits<double>::infinity());
  if (idle_timeout) parameters.idle_timeout = Seconds(*idle_timeout);
  parameters.models_memory = bytes(config, "models_memory");
  return parameters;
}

}  // namespace turbomind
