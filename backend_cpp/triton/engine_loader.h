// Engine loader of a model, which also restores the engine after sleep.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache_control.h"
#include "engine/load_engine.h"
#include "triton/model_memory.h"
#include "triton/model_parameters.h"

namespace turbomind {

// LoRA adapters that an engine is to have, by name.
struct KnownAdapter {
  std::string path;
  std::string note;  // for the list alone
};
using KnownAdapters = std::map<std::string, KnownAdapter>;

// Used by one thread at a time.
class EngineLoader {
 public:
  // Finds the model. Throws Error with what the user must do.
  explicit EngineLoader(const ModelParameters& parameters);

  // The model's name as clients see it.
  const std::string& served_name() const { return served_name_; }
  // The engine to be, where models may take `budget` bytes.
  PlannedEngine plan(size_t budget) const;
  // Throws Error, also where the engine would take more than `budget` bytes, or its weights are others than before: the
  // tokenizer, which stayed, may be too.
  std::unique_ptr<Engine> load(const KnownAdapters& adapters, size_t budget);
  // Prepares an engine without requests for sleep: nothing that conversations need is lost where files, or for kWeights
  // the host's memory, keep it. For kNothing, the engine has to end then. Returns what its cache then holds.
  CacheReport rest(Engine& engine, SleepLevel level);

 private:
  void check_weights();
  CacheReport dispatch(Engine& engine, CacheControl::Action action);

  const ModelParameters parameters_;
  const Programs programs_;
  std::string directory_;
  std::string served_name_;
  bool has_loaded_ = false;
  int page_count_ = 0;                                                          // of the cache, once it has loaded
  std::vector<std::pair<uintmax_t, std::filesystem::file_time_type>> weights_;  // sizes and times of its files
  std::shared_ptr<SessionTable::Sessions> sessions_ = std::make_shared<SessionTable::Sessions>();  // of the last engine
};

}  // namespace turbomind
