// Python programs that a model in Triton starts; the only place in C++ with their module names.
#pragma once

#include <string>

#include "engine/load_engine.h"

namespace turbomind {

// `model_path` as in config.pbtxt; relative paths start at `version_directory`. A directory without spec.json is handed
// to `python -m lmdeploy.turbomind.engine_dir`, which converts a checkpoint. Throws Error with its message.
std::string find_engine_directory(const std::string& model_path, const std::string& version_directory);

// Of $LMDEPLOY_PYTHON, else of python3, and the grammar program next to this library or two folders above it.
Programs installed_programs(const std::string& version_directory);

}  // namespace turbomind
