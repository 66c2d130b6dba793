#include "triton/model_state.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "base/constant_time.h"
#include "base/json.h"
#include "base/nearest.h"
#include "engine/cache_control.h"
#include "triton/engine_location.h"

namespace turbomind {

namespace {

std::string object(std::initializer_list<std::pair<const char*, int64_t>> members) {
  std::string text;
  for (const auto& [name, value] : members) {
    text += (text.empty() ? "{" : ", ") + quoted(name) + ": " + std::to_string(value);
  }
  return text + "}";
}

std::string as_json(const CacheReport& report) {
  const EngineStats& stats = report.stats;
  const auto bytes = [&](int pages) { return static_cast<int64_t>(report.page_bytes) * pages; };
  const std::string device = object({{"pages", stats.blocks_total},
                                     {"used", stats.blocks_used},
                                     {"idle", stats.blocks_idle},
                                     {"bytes", bytes(stats.blocks_used + stats.blocks_idle)}});
  const std::string host = object(
      {{"pages", stats.host_blocks_total}, {"used", stats.host_blocks_used}, {"bytes", bytes(stats.host_blocks_used)}});
  const std::string disk = object({{"files", stats.disk.files},
                                   {"bytes", stats.disk.bytes},
                                   {"written", stats.disk.written},
                                   {"read", stats.disk.read},
                                   {"damaged", stats.disk.damaged},
                                   {"failures", stats.disk.failures}});
  const std::string pinned = object(
      {{"prompts", report.pinned_prompts}, {"pages", report.pinned_pages}, {"most_pages", report.most_pinned_pages}});
  return "{" + quoted("device") + ": " + device + ", " + quoted("host") + ": " + host + ", " + quoted("disk") + ": " +
         (report.has_files ? disk : "null") + ", " + quoted("pinned") + ": " + pinned + ", " + quoted("tokens") + ": " +
         std::to_string(report.tokens) + "}";
}

constexpr auto kWatchInterval = std::chrono::milliseconds(20);
// A response may be out before the engine has counted it: so often, and so far apart, metrics are looked at once more.
constexpr int kLastLooks = 10;
constexpr auto kLastLookInterval = std::chrono::milliseconds(100);
constexpr auto kEarlyStopMemory = std::chrono::seconds(30);
constexpr size_t kMaxEarlyStops = 4096;
constexpr const char* kControlKey = "LMDEPLOY_CONTROL_KEY";
constexpr double kDefaultDrainSeconds = 20;  // Triton's own --exit-timeout-secs is 30
constexpr const char* kHung = "the engine hangs: a step takes longer than step_timeout allows";
constexpr const char* kUnloaded = "the model was unloaded before the response had ended";
const std::vector<std::string> kParameters = {"model_path",    "model_name",     "engine_config",
                                              "drain_seconds", "unload_seconds", "served_model_name"};

std::string model_name(TRITONBACKEND_Model* model) {
  const char* name = nullptr;
  check(TRITONBACKEND_ModelName(model, &name));
  return name;
}

uint64_t model_version(TRITONBACKEND_Model* model) {
  uint64_t version = 0;
  check(TRITONBACKEND_ModelVersion(model, &version));
  return version;
}

std::string version_directory(TRITONBACKEND_Model* model) {
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* location = nullptr;
  check(TRITONBACKEND_ModelRepository(model, &type, &location));
  return std::string(location) + "/" + std::to_string(model_version(model));
}

// Throws Error where a request that controls the engine lacks the key for that. `what`: the tensor that asks.
void check_key(const RequestReader& reader, const std::string& what) {
  const char* key = std::getenv(kControlKey);
  if (key != nullptr && *key != '\0' && !equal_in_constant_time(reader.control_key(), key)) {
    throw invalid_argument(what + " needs the control_key that the server was started with");
  }
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

void refuse_unknown_parameters(const Json& config) {
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

std::optional<std::chrono::duration<double>> seconds(const Json& config, const std::string& key) {
  const std::string given = parameter(config, key);
  if (given.empty()) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(given.c_str(), &end);
  if (*end != '\0' || !(number >= 0)) {
    throw invalid_argument(key + " must be a number of seconds >= 0, got " + given);
  }
  return std::chrono::duration<double>(number);
}

Grace grace(const Json& config) {
  const std::chrono::duration<double> usual(kDefaultDrainSeconds);
  return {seconds(config, "drain_seconds").value_or(usual), seconds(config, "unload_seconds")};
}

}  // namespace

void EarlyStops::add(const std::string& name) {
  forget_old();
  names_.emplace_back(Clock::now(), name);
}

bool EarlyStops::take(const std::string& name) {
  forget_old();
  const auto it = std::find_if(names_.begin(), names_.end(), [&](const auto& entry) { return entry.second == name; });
  if (it == names_.end()) return false;
  names_.erase(it);
  return true;
}

void EarlyStops::forget_old() {
  const auto horizon = Clock::now() - kEarlyStopMemory;
  while (!names_.empty() && (names_.front().first < horizon || names_.size() >= kMaxEarlyStops)) names_.pop_front();
}

ModelState::ModelState(TRITONBACKEND_Model* model) : exit_watch_(model, grace(model_config(model))) {
  const Json config = model_config(model);
  refuse_unknown_parameters(config);
  const std::string directory = find_engine_directory(parameter(config, "model_path"), version_directory(model));
  LoadedEngine loaded = load_engine(directory, engine_settings(config), installed_programs(version_directory(model)));
  engine_ = std::move(loaded.engine);
  const std::string own_name = parameter(config, "served_model_name");
  const std::string given_name = own_name.empty() ? parameter(config, "model_name") : own_name;
  const std::string& name = given_name.empty() ? loaded.spec.model_name : given_name;
  const EngineConfig& engine_config = engine_->config();
  log_message(TRITONSERVER_LOG_INFO,
              "serving " + name + " from " + directory + ": session length " +
                  std::to_string(engine_config.session_len) + ", batch " +
                  std::to_string(engine_config.max_batch_size) + ", " +
                  std::to_string(engine_config.page_count / std::max(1, engine_config.plan.pages_of_block())) +
                  " cache blocks of " + std::to_string(engine_config.block_len) + " tokens");
  for (const std::string& note : loaded.notes) log_message(TRITONSERVER_LOG_WARN, note);
  if (!loaded.no_grammar_reason.empty()) {
    log_message(TRITONSERVER_LOG_WARN, "response_format is not available: " + loaded.no_grammar_reason);
  }
  metrics_.emplace(MetricLabels{model_name(model), std::to_string(model_version(model)), name}, engine_config);
  metrics_->publish(engine_->stats());
  watcher_ = std::thread([this] { watch(); });
}

ModelState::~ModelState() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  watcher_.join();  // it looks at the engine
  engine_.reset();  // delivers every open request's last output, which needs open_
}

void ModelState::execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) noexcept {
  std::shared_ptr<ResponseStream> stream;
  try {
    const RequestReader reader(request);
    stream = std::make_shared<ResponseStream>(instance, request, reader.is_legacy());
    start(reader, stream);
  } catch (const Error& error) {
    refuse(instance, request, stream, error);
  } catch (const std::exception& error) {
    refuse(instance, request, stream, internal_error(error.what()));
  }
}

void ModelState::refuse(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request,
                        std::shared_ptr<ResponseStream>& stream, const Error& error) noexcept {
  try {
    if (!stream) stream = std::make_shared<ResponseStream>(instance, request, false);
    stream->send_error(error.code(), error.what());
  } catch (const std::exception& lost) {
    log_message(TRITONSERVER_LOG_ERROR, std::string("a request could not be answered: ") + lost.what());
  }
}

void ModelState::start(const RequestReader& reader, const std::shared_ptr<ResponseStream>& stream) {
  if (const std::optional<std::string> name = reader.stop_request_id()) {
    stop(*name);
    stream->send_final();
    return;
  }
  if (engine_->is_hung()) throw Error(ErrorCode::kUnavailable, kHung);
  const auto control = reader.adapter_control();
  if (auto asked = reader.cache_control()) {
    check_key(reader, "cache_control");
    return control_cache(std::move(*asked), stream);
  }
  if (control || reader.wants_limits()) {
    if (!engine_->is_healthy()) throw Error(ErrorCode::kUnavailable, "the engine takes no requests now");
    if (control) check_key(reader, "lora_control");
    Output reply;
    reply.text = control ? control_adapters(*control) : limits();
    reply.finish = FinishReason::kStop;
    reply.is_final = true;
    stream->send(reply);
    return;
  }
  Request request;
  request.input_ids = reader.input_ids();
  request.embeddings = reader.embeddings(engine_->embedding_width());
  request.params = reader.params();
  request.session = reader.session();
  request.priority = reader.priority();
  request.deadline = reader.deadline();
  request.returns_prompt = stream->wants_prompt();
  if (reader.is_legacy()) adapt_to_older_client(request);
  request.on_output = [this, stream](Output&& output) {
    if (ends_unloaded_ && output.finish == FinishReason::kCancelled) {
      output.finish = FinishReason::kError;
      output.error_code = ErrorCode::kNotFound;
      output.error = kUnloaded;
    }
    stream->send(output);
    if (!output.is_final) return;
    metrics_->observe(output);
    close(output.request);
  };
  const std::string name = reader.id();
  {
    const std::lock_guard lock(mu_);
    if (!name.empty() && early_stops_.take(name)) {
      Output cancelled;
      cancelled.finish = FinishReason::kCancelled;
      cancelled.is_final = true;
      cancelled.input_token_len = static_cast<int>(request.input_ids.size());
      stream->send(cancelled);
      return;
    }
    request.id = next_id_++;
    open_.emplace(request.id, Open{stream, name});
  }
  changed_.notify_one();
  const RequestId id = request.id;
  try {
    engine_->submit(std::move(request));
  } catch (const Error&) {
    close(id);
    throw;
  }
}

// The older server shortened what did not fit and took the end-of-sequence token out of the vocabulary with a bad word.
void ModelState::adapt_to_older_client(Request& request) const {
  GenerationParams& params = request.params;
  params.max_new_tokens = std::min(params.max_new_tokens, engine_->config().session_len);
  if (!request.session) return;
  const bool only_stops_or_ends = request.session->stop || (request.session->end && !request.session->start);
  if (only_stops_or_ends && params.max_new_tokens == 0) request.input_ids.clear();
}

std::string ModelState::limits() const {
  const EngineConfig& config = engine_->config();
  return "{" + quoted("session_len") + ": " + std::to_string(config.session_len) + ", " + quoted("max_batch_size") +
         ": " + std::to_string(config.max_batch_size) + "}";
}

void ModelState::control_cache(CacheControl control, const std::shared_ptr<ResponseStream>& stream) {
  control.on_done = [stream](const CacheReport& report, const Error* error) {
    if (error != nullptr) return stream->send_error(error->code(), error->what());
    Output reply;
    reply.text = as_json(report);
    reply.finish = FinishReason::kStop;
    reply.is_final = true;
    stream->send(reply);
  };
  engine_->control_cache(std::move(control));
}

// Returns the adapters there are then, as JSON: [[name, note], ...].
std::string ModelState::control_adapters(const RequestReader::AdapterControl& control) {
  if (control.action == "load") {
    engine_->load_adapter(control.name, control.path, control.note);
    log_message(TRITONSERVER_LOG_INFO, "adapter " + control.name + " was loaded from " + control.path);
  } else if (control.action == "unload") {
    engine_->unload_adapter(control.name);
    log_message(TRITONSERVER_LOG_INFO, "adapter " + control.name + " was unloaded");
  }
  std::string list;
  for (const AdapterInfo& adapter : engine_->adapters()) {
    list += (list.empty() ? "[" : ", [") + quoted(adapter.name) + ", " + quoted(adapter.note) + "]";
  }
  return "[" + list + "]";
}

void ModelState::stop(const std::string& name) {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [id, open] : open_) {
      if (open.name == name) ids.push_back(id);
    }
    if (ids.empty()) early_stops_.add(name);
  }
  for (const RequestId id : ids) engine_->cancel(id);
}

void ModelState::close(RequestId id) {
  const std::lock_guard lock(mu_);
  open_.erase(id);
}

// The engine cannot continue in this process, which ends like one that is asked to, so that readiness ends and whoever
// watches the server starts it again.
void ModelState::end_server(const std::string& reason) {
  log_message(TRITONSERVER_LOG_ERROR, reason + ": the server ends, to be restarted");
  ::kill(::getpid(), SIGTERM);
}

void ModelState::watch() {
  std::unique_lock lock(mu_);
  int looks_left = 0;
  while (!is_stopping_) {
    if (!open_.empty()) {
      looks_left = kLastLooks;
      changed_.wait_for(lock, kWatchInterval, [this] { return is_stopping_; });
    } else if (looks_left-- > 0) {
      changed_.wait_for(lock, kLastLookInterval, [this] { return is_stopping_ || !open_.empty(); });
    } else {
      // A request that fails at once may be gone again when this thread wakes up.
      changed_.wait(lock, [this] { return is_stopping_ || !open_.empty() || engine_->has_failed(); });
      if (!is_stopping_ && open_.empty()) return end_server("the engine has stopped after a device fault");
      looks_left = kLastLooks;
    }
    if (is_stopping_) return;
    if (engine_->is_hung()) return end_server(kHung);
    const ExitWatch::End end = exit_watch_.time_up();
    const bool ends_all = end != ExitWatch::End::kNotYet;
    if (end == ExitWatch::End::kModelUnloads) ends_unloaded_ = true;
    for (const auto& [id, open] : open_) {
      if (ends_all || open.stream->is_cancelled()) engine_->cancel(id);
    }
    metrics_->publish(engine_->stats());
  }
}

}  // namespace turbomind
