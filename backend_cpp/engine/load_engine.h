// Builds an engine from an engine directory (docs/interfaces.md) and the user's settings.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "engine/engine.h"
#include "model/spec/model_spec.h"

namespace turbomind {

struct LoadedEngine {
  ModelSpec spec;
  std::unique_ptr<Engine> engine;
  std::string no_grammar_reason;  // why response formats are refused; empty: they are not
};

// `settings` holds fields of TurbomindEngineConfig; absent or null means the default. Throws Error.
LoadedEngine load_engine(const std::string& directory, const Json& settings);

}  // namespace turbomind
