#include "triton/engine_loader.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <utility>

#include "model/spec/model_spec.h"
#include "triton/engine_location.h"
#include "triton/handles.h"

namespace turbomind {

EngineLoader::EngineLoader(const ModelParameters& parameters)
    : parameters_(parameters),
      programs_(installed_programs(parameters.version_directory)),
      directory_(find_engine_directory(parameters.model_path, parameters.version_directory)),
      served_name_(parameters.served_name.empty() ? read_model_spec(directory_ + "/spec.json").model_name
                                                  : parameters.served_name) {}

PlannedEngine EngineLoader::plan(size_t budget) const {
  return plan_engine(directory_, parameters_.settings, programs_, {budget, page_count_});
}

void EngineLoader::check_weights() {
  auto found = decltype(weights_)();
  for (const std::filesystem::path& file : weight_files(directory_)) {
    if (!std::filesystem::exists(file)) return;  // which whoever reads it reports
    found.emplace_back(std::filesystem::file_size(file), std::filesystem::last_write_time(file));
    const size_t index = found.size() - 1;
    if (index >= weights_.size() || weights_[index] == found[index]) continue;
    throw Error(ErrorCode::kUnavailable, file.string() + " is not the file that " + served_name_ +
                                             " was loaded from: unload the model and load it again, or restart the "
                                             "server");
  }
  weights_ = std::move(found);
}

std::unique_ptr<Engine> EngineLoader::load(const KnownAdapters& adapters, size_t budget) {
  if (!std::filesystem::exists(directory_ + "/spec.json")) {
    directory_ = find_engine_directory(parameters_.model_path, parameters_.version_directory);
  }
  EngineSettings settings = parameters_.settings;
  settings.adapters.clear();
  if (!has_loaded_) weights_.clear();
  check_weights();
  LoadedEngine loaded = load_engine(directory_, settings, programs_, {budget, page_count_});
  check_weights();  // nobody has changed them meanwhile
  std::unique_ptr<Engine> engine = std::move(loaded.engine);
  for (const auto& [name, adapter] : adapters) {
    try {
      engine->load_adapter(name, adapter.path, adapter.note);
    } catch (const Error& error) {
      if (!has_loaded_) throw;
      log_message(TRITONSERVER_LOG_ERROR, "adapter " + name + " is not there after the model slept: " + error.what());
    }
  }
  if (!sessions_->empty()) dispatch(*engine, CacheControl::Action::kReturn);
  const EngineConfig& config = engine->config();
  page_count_ = config.page_count;
  if (std::exchange(has_loaded_, true)) return engine;
  log_message(TRITONSERVER_LOG_INFO, "serving " + served_name_ + " from " + directory_ + ": session length " +
                                         std::to_string(config.session_len) + ", batch " +
                                         std::to_string(config.max_batch_size) + ", " +
                                         std::to_string(config.page_count / std::max(1, config.plan.pages_of_block())) +
                                         " cache blocks of " + std::to_string(config.block_len) + " tokens");
  for (const std::string& note : loaded.notes) log_message(TRITONSERVER_LOG_WARN, note);
  return engine;
}

CacheReport EngineLoader::rest(Engine& engine, SleepLevel level) {
  const bool stays = level == SleepLevel::kWeights;
  CacheReport report = dispatch(engine, stays ? CacheControl::Action::kRest : CacheControl::Action::kLeave);
  if (stays) return report;
  EngineStats& stats = report.stats;
  stats.blocks_used = stats.blocks_idle = stats.host_blocks_used = 0;
  report.pinned_prompts = report.pinned_pages = 0;
  return report;
}

CacheReport EngineLoader::dispatch(Engine& engine, CacheControl::Action action) {
  std::promise<CacheReport> done;
  CacheControl control;
  control.action = action;
  control.sessions = sessions_;
  control.on_done = [&done](const CacheReport& report, const Error* error) {
    if (error != nullptr) {
      done.set_exception(std::make_exception_ptr(*error));
    } else {
      done.set_value(report);
    }
  };
  engine.control_cache(std::move(control));
  return done.get_future().get();
}

}  // namespace turbomind
