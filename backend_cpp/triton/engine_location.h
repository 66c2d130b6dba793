// Finds the engine directory for a model path, converting a checkpoint when needed.
#pragma once

#include <string>

namespace turbomind {

// The interpreter that has our package: $LMDEPLOY_PYTHON, else python3.
std::string python_interpreter();

// `model_path` as in config.pbtxt; relative paths start at `version_directory`. A directory without spec.json is handed
// to `python -m lmdeploy.turbomind.engine_dir`. Throws Error with its message.
std::string find_engine_directory(const std::string& model_path, const std::string& version_directory);

// The same for a head of the model in `target`: `model` is its folder, empty where it is in the model's checkpoint.
std::string find_head_directory(const std::string& target, const std::string& method, const std::string& model);

}  // namespace turbomind
