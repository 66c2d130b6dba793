// Builds the runner of a model that runs in other processes (docs/internals/interfaces.md: worker.json).
#pragma once

#include <memory>
#include <string>

#include "engine/fields/engine_settings.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"

namespace turbomind {

// Throws Error where the settings name another format of weights than the checkpoint has.
void check_model_format(const EngineSettings& settings, const std::string& found);

// Whether an engine directory is of such a model.
bool has_worker(const std::string& directory);

// Starts the workers. `max_rows` and `limits` bound a step. Throws Error.
std::unique_ptr<ModelRunner> make_worker_runner(const std::string& directory, const ModelSpec& spec,
                                                const EngineSettings& settings, int max_rows, const StepLimits& limits);

}  // namespace turbomind
