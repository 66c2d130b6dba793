// Builds an engine from an engine directory (docs/internals/interfaces.md) and the user's settings.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/fields/engine_settings.h"
#include "model/spec/model_spec.h"

namespace turbomind {

struct LoadedEngine {
  ModelSpec spec;
  std::unique_ptr<Engine> engine;
  std::string no_grammar_reason;   // why response formats are refused; empty: they are not
  std::vector<std::string> notes;  // sentences about settings that were not taken as they are
};

// Where the engine directory of what drafts for the model in `target` is, which a setting names.
using LocateModel = std::function<std::string(const SpeculativeConfig&, const std::string& target)>;

// `python`: the interpreter of this installation, for what the engine leaves to programs of its own. Without `locate`,
// settings name engine directories themselves. Throws Error.
LoadedEngine load_engine(const std::string& directory, const EngineSettings& settings, const std::string& python,
                         const LocateModel& locate = nullptr);

}  // namespace turbomind
