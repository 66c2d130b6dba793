// ModelState's thread that loads and ends engines.
#include <malloc.h>

#include <utility>

#include "triton/model_state.h"

namespace turbomind {

void ModelState::tend() {
  for (;;) {
    const ModelMemory::Action action = memory_.next(slot_);
    switch (action.kind) {
      case ModelMemory::Action::Kind::kEnd:
        return;
      case ModelMemory::Action::Kind::kReject:
        reject_waiting(action.reason);
        break;
      case ModelMemory::Action::Kind::kSleep:
        sleep(action.level);
        break;
      case ModelMemory::Action::Kind::kWake:
        try {
          if (!engine_) load();
          begin_waiting();
        } catch (const std::exception& error) {
          reject_waiting(error.what());
        }
        break;
    }
  }
}

void ModelState::know(const EngineConfig& config) {
  if (!config_) metrics_.describe(config);
  config_ = config;
}

void ModelState::load() {
  std::unique_lock lock(mu_);
  const KnownAdapters adapters = adapters_;
  lock.unlock();
  std::unique_ptr<Engine> engine = loader_.load(adapters, memory_.budget());
  lock.lock();
  know(engine->config());
  engine_ = std::move(engine);
}

void ModelState::begin_waiting() {
  for (;;) {
    std::unique_lock lock(mu_);
    if (waiting_.empty()) {
      const EngineMemory bytes = engine_->memory();
      wake_error_.clear();
      memory_.woke(slot_, {bytes.total(), bytes.weights});
      return publish();
    }
    const RequestId id = waiting_.front();
    waiting_.pop_front();
    const auto request = open_.find(id);
    if (request == open_.end()) continue;
    const Begin begin = std::exchange(request->second.begin, nullptr);
    const auto waited = static_cast<float>(seconds_between(request->second.arrived, Clock::now()));
    memory_.admit(slot_);
    lock.unlock();
    this->begin(id, begin, waited);
  }
}

void ModelState::reject_waiting(const std::string& reason) {
  std::vector<Stream> rejected;
  {
    const std::lock_guard lock(mu_);
    for (const RequestId id : std::exchange(waiting_, {})) {
      const auto request = open_.find(id);
      if (request == open_.end()) continue;
      rejected.push_back(std::move(request->second.stream));
      open_.erase(request);
    }
    wake_error_ = reason;
    memory_.failed(slot_);
    publish();
  }
  if (rejected.empty()) return;
  const std::string message = loader_.served_name() + " could not be woken: " + reason;
  log_message(TRITONSERVER_LOG_ERROR, message);
  for (const Stream& stream : rejected) stream->send_error(ErrorCode::kUnavailable, message);
}

void ModelState::sleep(SleepLevel level) {
  if (engine_) {
    std::optional<CacheReport> report;
    try {
      report = loader_.rest(*engine_, level);
    } catch (const Error& error) {  // it has failed: its cache is lost
      log_message(TRITONSERVER_LOG_ERROR, std::string("the cache was not written: ") + error.what());
    }
    std::unique_lock lock(mu_);
    if (report) last_report_ = *report;
    metrics_.publish(engine_->stats());
    if (level == SleepLevel::kNothing) {
      metrics_.end_engine();
      std::unique_ptr<Engine> ended = std::move(engine_);
      lock.unlock();
      ended.reset();
      ::malloc_trim(0);  // the C library would keep the memory for this process
    }
  }
  std::vector<Stream> done;
  std::string text;
  {
    const std::lock_guard lock(mu_);
    memory_.slept(slot_, level);
    publish();
    text = sleep_report();
    std::erase_if(sleepers_, [&](const Sleeper& sleeper) {
      if (sleeper.level > level) return false;
      done.push_back(sleeper.stream);
      return true;
    });
  }
  for (const Stream& stream : done) stream->reply(text);
}

}  // namespace turbomind
