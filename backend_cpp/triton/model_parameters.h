// Parameters of a model, from model_repository/turbomind/config.pbtxt and the environment.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "engine/fields/engine_settings.h"
#include "triton/exit_watch.h"
#include "triton/handles.h"

namespace turbomind {

struct ModelParameters {
  std::string name;     // in Triton
  std::string version;  // in Triton
  std::string version_directory;
  std::string model_path;
  std::string served_name;  // empty: the engine directory's
  EngineSettings settings;
  Grace grace{};
  std::optional<std::chrono::duration<double>> idle_timeout;  // negative, or none: the model never sleeps by itself
  std::optional<size_t> models_memory;                        // bytes of all models; none: no limit
};

// Throws Error that names the parameter.
ModelParameters read_parameters(TRITONBACKEND_Model* model);

}  // namespace turbomind
