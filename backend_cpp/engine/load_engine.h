// Engine construction from an engine directory (docs/internals/interfaces.md) and the user's settings.
#pragma once

#include <filesystem>
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
  std::vector<std::string> notes;  // sentences about settings that were not taken as they are
};

// Commands of the processes that an engine starts, of the installation that loads it; the engine's own arguments
// follow. An engine that needs one that is empty says so.
struct Programs {
  std::vector<std::string> worker;     // runs a rank of a model (model/worker/worker_process.h)
  std::vector<std::string> publisher;  // of KV events (engine/events/event_publisher.h)
  std::vector<std::string> grammar;    // reads response formats (engine/grammar/process_compiler.h)
  // Finds the engine directory of what drafts for the model in `target`. Null: settings name it themselves.
  std::function<std::string(const SpeculativeConfig&, const std::string& target)> locate;
};

// Bounds of an engine besides its settings.
struct MemoryBounds {
  size_t bytes = ~size_t{0};  // of weights and cache together
  int page_count = 0;         // of the cache, as an earlier engine of the model had it; 0: as the settings say
};

// Throws Error.
LoadedEngine load_engine(const std::string& directory, const EngineSettings& settings, const Programs& programs,
                         const MemoryBounds& bounds = {});

// An engine that is not loaded: what it will be, and the memory that it will take.
struct PlannedEngine {
  EngineConfig config;
  EngineMemory memory;
};
// Throws Error where it could not be loaded. Reads no weights.
PlannedEngine plan_engine(const std::string& directory, const EngineSettings& settings, const Programs& programs,
                          const MemoryBounds& bounds);

// Files of the weights of an engine directory; none where workers read them.
std::vector<std::filesystem::path> weight_files(const std::string& directory);

}  // namespace turbomind
