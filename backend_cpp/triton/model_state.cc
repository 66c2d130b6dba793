#include "triton/model_state.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <initializer_list>

#include "base/constant_time.h"
#include "base/json.h"
#include "engine/cache_control.h"

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
      {{"prompts", report.pinned_prompts}, {"pages", report.pinned_pages}, {"most_pages", report.max_pinned_pages}});
  return "{" + quoted("device") + ": " + device + ", " + quoted("host") + ": " + host + ", " + quoted("disk") + ": " +
         (report.has_files ? disk : "null") + ", " + quoted("pinned") + ": " + pinned + ", " + quoted("tokens") + ": " +
         std::to_string(report.tokens) + "}";
}

constexpr auto kWatchInterval = std::chrono::milliseconds(20);
// A response may be out before the engine has counted it: so often, and so far apart, metrics are looked at once more.
constexpr int kLastChecks = 10;
constexpr auto kLastCheckInterval = std::chrono::milliseconds(100);
constexpr auto kEarlyStopMemory = std::chrono::seconds(30);
constexpr size_t kMaxEarlyStops = 4096;
constexpr const char* kControlKey = "LMDEPLOY_CONTROL_KEY";
constexpr const char* kHung = "the engine hangs: a step takes longer than step_timeout allows";
constexpr const char* kUnloaded = "the model was unloaded before the response had ended";
constexpr const char* kOverdue = "the request did not finish in the time it was given";

// Throws Error where a request that controls the engine lacks the key for that. `what`: the tensor that asks.
void check_key(const RequestReader& reader, const std::string& what) {
  const char* key = std::getenv(kControlKey);
  if (key != nullptr && *key != '\0' && !equal_in_constant_time(reader.control_key(), key)) {
    throw invalid_argument(what + " needs the control_key that the server was started with");
  }
}

void reply_cancelled(ResponseStream& stream, int input_len) {
  Output cancelled;
  cancelled.finish = FinishReason::kCancelled;
  cancelled.is_final = true;
  cancelled.input_token_len = input_len;
  stream.send(cancelled);
}

ModelMemory& common_memory(const ModelParameters& parameters) {
  ModelMemory& memory = ModelMemory::instance();
  if (parameters.models_memory) memory.limit(*parameters.models_memory);
  return memory;
}

}  // namespace

void EarlyStops::add(const std::string& name) {
  evict_old();
  names_.emplace_back(Clock::now(), name);
}

bool EarlyStops::take(const std::string& name) {
  evict_old();
  const auto it = std::find_if(names_.begin(), names_.end(), [&](const auto& entry) { return entry.second == name; });
  if (it == names_.end()) return false;
  names_.erase(it);
  return true;
}

void EarlyStops::evict_old() {
  const auto horizon = Clock::now() - kEarlyStopMemory;
  while (!names_.empty() && (names_.front().first < horizon || names_.size() >= kMaxEarlyStops)) names_.pop_front();
}

ModelState::ModelState(TRITONBACKEND_Model* model)
    : parameters_(read_parameters(model)),
      exit_watch_(model, parameters_.grace),
      memory_(common_memory(parameters_)),
      loader_(parameters_),
      metrics_({parameters_.name, parameters_.version, loader_.served_name()}) {
  for (const auto& [name, path] : parameters_.settings.adapters) adapters_[name] = {path, ""};
  const size_t budget = memory_.budget();
  ModelBytes bytes;
  if (budget < ~size_t{0}) {
    const PlannedEngine planned = loader_.plan(budget);
    know(planned.config);
    bytes = {planned.memory.total(), planned.memory.weights};
  }
  slot_ = memory_.add(bytes, parameters_.idle_timeout);
  try {
    if (memory_.reserve(slot_)) {
      load();
      begin_waiting();
    }
  } catch (...) {
    memory_.remove(slot_);
    throw;
  }
  sleep_thread_ = std::thread([this] { tend(); });
  watcher_ = std::thread([this] { watch(); });
}

ModelState::~ModelState() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  watcher_.join();  // it looks at the engine
  memory_.close(slot_);
  sleep_thread_.join();
  reject_waiting(kUnloaded);
  for (const Sleeper& sleeper : sleepers_) sleeper.stream->send_error(ErrorCode::kNotFound, kUnloaded);
  engine_.reset();  // delivers every open request's last output, which needs open_
  memory_.remove(slot_);
}

// ---- requests ----

void ModelState::execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) noexcept {
  Stream stream;
  try {
    const auto reader = std::make_shared<const RequestReader>(request);
    stream = std::make_shared<ResponseStream>(instance, request, reader->is_legacy());
    start(reader, stream);
  } catch (const Error& error) {
    reject(instance, request, stream, error);
  } catch (const std::exception& error) {
    reject(instance, request, stream, internal_error(error.what()));
  }
}

void ModelState::reject(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, Stream& stream,
                        const Error& error) noexcept {
  try {
    if (!stream) stream = std::make_shared<ResponseStream>(instance, request, false);
    stream->send_error(error.code(), error.what());
  } catch (const std::exception& lost) {
    log_message(TRITONSERVER_LOG_ERROR, std::string("a request could not be answered: ") + lost.what());
  }
}

void ModelState::start(const std::shared_ptr<const RequestReader>& reader, const Stream& stream) {
  if (const std::optional<std::string> name = reader->stop_request_id()) {
    stop(*name);
    stream->send_final();
    return;
  }
  if (const auto control = reader->sleep_control()) {
    check_key(*reader, "sleep_control");
    return control_sleep(*reader, *control, stream);
  }
  const auto adapters = reader->adapter_control();
  auto cache = reader->cache_control();
  if (cache) check_key(*reader, "cache_control");
  // Answered without waking it.
  const bool changes_adapters = adapters && adapters->action != "list";
  const bool controls_cache =
      cache && (cache->action == CacheControl::Action::kReport || cache->action == CacheControl::Action::kDropMemory);
  std::optional<std::string> known;
  {
    const std::lock_guard lock(mu_);
    if (engine_ && engine_->is_hung()) throw Error(ErrorCode::kUnavailable, kHung);
    const bool is_healthy = !engine_ || engine_->is_healthy();
    if ((adapters || reader->reads_limits()) && !is_healthy) {
      throw Error(ErrorCode::kUnavailable, "the engine takes no requests now");
    }
    if (adapters) check_key(*reader, "lora_control");  // after that, as health checks have no key
    if (adapters && !changes_adapters) {
      known = adapter_list();
    } else if (reader->reads_limits()) {
      known = limits();
    } else if (controls_cache && !memory_.pin(slot_)) {
      known = as_json(last_report_);
    }
  }
  if (known) return stream->reply(*known);
  if (controls_cache) return control_cache(std::move(*cache), stream, [this] { memory_.release(slot_); });
  if (!adapters && !cache) return generate(reader, stream);
  open({stream, reader->id()}, [this, adapters, cache, stream](RequestId id, float) {
    if (cache) return control_cache(*cache, stream, [this, id] { close(id); });
    control_adapters(*adapters);
    std::unique_lock lock(mu_);
    const std::string text = adapter_list();
    lock.unlock();
    close(id);
    stream->reply(text);
  });
}

void ModelState::generate(const std::shared_ptr<const RequestReader>& reader, const Stream& stream) {
  Request request;
  request.input_ids = reader->input_ids();
  request.params = reader->params();
  request.session = reader->session();
  request.priority = reader->priority();
  request.deadline = reader->deadline();
  request.returns_prompt = stream->returns_prompt();
  Open entry{stream, reader->id(), static_cast<int>(request.input_ids.size()), request.deadline, reader->keep_alive()};
  open(std::move(entry), [this, reader, stream, request = std::move(request)](RequestId id, float waited) mutable {
    request.id = id;
    request.embeddings = reader->embeddings(engine_->embedding_width());
    if (reader->is_legacy()) adapt_to_older_client(request);
    submit(std::move(request), stream, waited);
  });
}

void ModelState::submit(Request request, const Stream& stream, float waited) {
  request.on_output = [this, stream, waited](Output&& output) {
    if (ends_unloaded_ && output.finish == FinishReason::kCancelled) {
      output.finish = FinishReason::kError;
      output.error_code = ErrorCode::kNotFound;
      output.error = kUnloaded;
    }
    if (output.finish != FinishReason::kNone) output.times.load = waited;
    if (output.is_final) {  // before its caller knows, whose next request finds the model as this one leaves it
      metrics_.observe(output);
      close(output.request);
    }
    stream->send(output);
  };
  engine_->submit(std::move(request));
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
  return "{" + quoted("session_len") + ": " + std::to_string(config_->session_len) + ", " + quoted("max_batch_size") +
         ": " + std::to_string(config_->max_batch_size) + "}";
}

// `on_end` is called before the reply.
void ModelState::control_cache(CacheControl control, const Stream& stream, std::function<void()> on_end) {
  control.on_done = [stream, on_end](const CacheReport& report, const Error* error) {
    on_end();
    if (error != nullptr) {
      stream->send_error(error->code(), error->what());
    } else {
      stream->reply(as_json(report));
    }
  };
  try {
    engine_->control_cache(std::move(control));
  } catch (const Error& error) {
    on_end();
    stream->send_error(error.code(), error.what());
  }
}

void ModelState::control_adapters(const RequestReader::AdapterControl& control) {
  if (control.action == "load") {
    engine_->load_adapter(control.name, control.path, control.note);
    log_message(TRITONSERVER_LOG_INFO, "adapter " + control.name + " was loaded from " + control.path);
    const std::lock_guard lock(mu_);
    adapters_[control.name] = {control.path, control.note};
  } else if (control.action == "unload") {
    engine_->unload_adapter(control.name);
    log_message(TRITONSERVER_LOG_INFO, "adapter " + control.name + " was unloaded");
    const std::lock_guard lock(mu_);
    adapters_.erase(control.name);
  }
}

// The adapters there are then: [[name, note], ...].
std::string ModelState::adapter_list() const {
  std::string list;
  for (const auto& [name, adapter] : adapters_) {
    list += (list.empty() ? "[" : ", [") + quoted(name) + ", " + quoted(adapter.note) + "]";
  }
  return "[" + list + "]";
}

void ModelState::control_sleep(const RequestReader& reader, const RequestReader::SleepControl& control,
                               const Stream& stream) {
  using Action = RequestReader::SleepControl::Action;
  const auto report = [this] {
    const std::lock_guard lock(mu_);
    return sleep_report();
  };
  if (control.action == Action::kReport) return stream->reply(report());
  if (control.action == Action::kWake) {
    const auto begin = [this, stream, report](RequestId id, float) {
      const std::string text = report();
      close(id);
      stream->reply(text);
    };
    return open({stream, reader.id(), 0, reader.deadline(), reader.keep_alive()}, begin);
  }
  const std::lock_guard lock(mu_);
  sleepers_.push_back({stream, control.level});
  memory_.request_sleep(slot_, control.level);
}

std::string ModelState::sleep_report() const {
  constexpr const char* kStates[] = {"asleep", "waking", "awake"};
  const ModelMemory::Report report = memory_.report(slot_);
  const auto number = [](const std::optional<double>& value) { return value ? std::to_string(*value) : "null"; };
  const std::string bytes = object({{"level", static_cast<int64_t>(report.level)},
                                    {"bytes", static_cast<int64_t>(report.bytes)},
                                    {"awake_bytes", static_cast<int64_t>(report.awake_bytes)},
                                    {"all_bytes", static_cast<int64_t>(report.all_bytes)},
                                    {"waiting", report.waiting}});
  return "{" + quoted("state") + ": " + quoted(kStates[static_cast<size_t>(report.state)]) + ", " +
         quoted("idle_seconds") + ": " + number(report.idle_seconds) + ", " + quoted("sleeps_in") + ": " +
         number(report.sleeps_in) + ", " + quoted("error") + ": " + quoted(wake_error_) + ", " + bytes.substr(1);
}

void ModelState::open(Open&& request, Begin begin) {
  RequestId id = 0;
  {
    std::unique_lock lock(mu_);
    if (!request.name.empty() && early_stops_.take(request.name)) {
      lock.unlock();
      return reply_cancelled(*request.stream, request.input_len);
    }
    id = next_id_++;
    const bool is_awake = memory_.enter(slot_);
    if (!is_awake) {
      request.begin = std::exchange(begin, nullptr);
      waiting_.push_back(id);
    }
    open_.emplace(id, std::move(request));
  }
  changed_.notify_one();
  if (begin) this->begin(id, begin, 0);
}

void ModelState::begin(RequestId id, const Begin& begin, float waited) {
  const auto fail = [this, id](const Error& error) {
    std::unique_lock lock(mu_);
    const Stream stream = open_.at(id).stream;
    lock.unlock();
    close(id);
    stream->send_error(error.code(), error.what());
  };
  try {
    begin(id, waited);
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(internal_error(error.what()));
  }
}

void ModelState::stop(const std::string& name) {
  const std::lock_guard lock(mu_);
  bool is_known = false;
  for (auto& [id, request] : open_) {
    if (request.name != name) continue;
    is_known = request.is_stopped = true;
    if (!request.begin) engine_->cancel(id);
  }
  if (!is_known) early_stops_.add(name);
}

void ModelState::close(RequestId id) {
  const std::lock_guard lock(mu_);
  const auto request = open_.find(id);
  const auto keep_alive = request->second.keep_alive;
  open_.erase(request);
  memory_.leave(slot_, keep_alive);
}

// ---- the watcher ----

// The engine cannot continue in this process, which ends like one that is asked to, so that readiness ends and whoever
// watches the server starts it again.
void ModelState::end_server(const std::string& reason) {
  log_message(TRITONSERVER_LOG_ERROR, reason + ": the server ends, to be restarted");
  ::kill(::getpid(), SIGTERM);
}

void ModelState::watch() {
  std::unique_lock lock(mu_);
  int checks_left = 0;
  while (!is_stopping_) {
    if (!open_.empty()) {
      checks_left = kLastChecks;
      changed_.wait_for(lock, kWatchInterval, [this] { return is_stopping_; });
    } else if (checks_left-- > 0) {
      changed_.wait_for(lock, kLastCheckInterval, [this] { return is_stopping_ || !open_.empty(); });
    } else {
      // A request that fails at once may be gone again when this thread wakes up.
      const auto has_failed = [this] { return engine_ && engine_->has_failed(); };
      changed_.wait(lock, [&] { return is_stopping_ || !open_.empty() || has_failed(); });
      if (!is_stopping_ && open_.empty()) return end_server("the engine has stopped after a device fault");
      checks_left = kLastChecks;
    }
    if (is_stopping_) return;
    if (engine_ && engine_->is_hung()) return end_server(kHung);
    check_open(lock);
    publish();
  }
}

// Ends requests whose clients have left, and those that wait for the model past their deadline.
void ModelState::check_open(std::unique_lock<std::mutex>& lock) {
  const ExitWatch::End end = exit_watch_.time_up();
  const bool ends_all = end != ExitWatch::End::kNotYet;
  if (end == ExitWatch::End::kModelUnloads) ends_unloaded_ = true;
  const auto now = Clock::now();
  std::vector<std::pair<Open, bool>> ended;  // whether it is overdue
  for (auto it = open_.begin(); it != open_.end();) {
    auto& [id, request] = *it;
    const bool is_cancelled = ends_all || request.is_stopped || request.stream->is_cancelled();
    const bool is_overdue = request.begin && request.deadline && *request.deadline <= now;
    if (!is_cancelled && !is_overdue) {
      ++it;
    } else if (!request.begin) {
      engine_->cancel(id);
      ++it;
    } else {
      memory_.abandon(slot_);
      ended.emplace_back(std::move(request), !is_cancelled);
      it = open_.erase(it);
    }
  }
  std::vector<Sleeper> sleepers;
  if (ends_all) sleepers.swap(sleepers_);
  if (ended.empty() && sleepers.empty()) return;
  lock.unlock();
  for (const auto& [request, is_overdue] : ended) {
    if (is_overdue) {
      request.stream->send_error(ErrorCode::kTimeout, kOverdue);
    } else if (ends_unloaded_) {
      request.stream->send_error(ErrorCode::kNotFound, kUnloaded);
    } else {
      reply_cancelled(*request.stream, request.input_len);
    }
  }
  for (const Sleeper& sleeper : sleepers) sleeper.stream->send_error(ErrorCode::kUnavailable, "the model is unloaded");
  lock.lock();
}

void ModelState::publish() {
  if (engine_) metrics_.publish(engine_->stats());
  metrics_.publish(memory_.report(slot_));
}

}  // namespace turbomind
