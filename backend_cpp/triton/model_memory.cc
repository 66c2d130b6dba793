#include "triton/model_memory.h"

#include <algorithm>
#include <utility>

namespace turbomind {

namespace {

constexpr double kForever = 1e9;  // seconds: as good as no end

std::string in_mb(size_t bytes) {
  return std::to_string((bytes + 999'999) / 1'000'000) + " MB";
}

}  // namespace

ModelMemory& ModelMemory::instance() {
  static ModelMemory memory;
  return memory;
}

void ModelMemory::limit(size_t budget) {
  const std::lock_guard lock(mu_);
  budget_ = std::min(budget_, budget);
  change();
}

size_t ModelMemory::budget() const {
  const std::lock_guard lock(mu_);
  return budget_;
}

ModelMemory::Id ModelMemory::add(const ModelBytes& bytes, std::optional<Seconds> idle_timeout) {
  const std::lock_guard lock(mu_);
  Model& model = models_[next_id_];
  model.bytes = bytes;
  model.idle_timeout = model.stays = idle_timeout;
  model.idle_since = Clock::now();
  return next_id_++;
}

bool ModelMemory::reserve(Id id) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  if (model.bytes.awake > budget_ - std::min(budget_, used_bytes())) return false;
  model.state = State::kWaking;
  model.reserved_bytes = model.bytes.awake;
  model.is_dispatched = true;
  return true;
}

void ModelMemory::close(Id id) {
  const std::lock_guard lock(mu_);
  at(id).is_closed = true;
  changed_.notify_all();
}

void ModelMemory::remove(Id id) {
  const std::lock_guard lock(mu_);
  models_.erase(id);
  change();
}

// ---- requests ----

bool ModelMemory::enter(Id id) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  if (model.state == State::kAwake && !model.is_in_the_way) {
    ++model.open;
    model.used = ++clock_;
    return true;
  }
  if (model.waiting++ == 0) model.arrival = ++clock_;
  change();
  return false;
}

bool ModelMemory::pin(Id id) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  if (model.state != State::kAwake) return false;
  ++model.pinned_open;
  return true;
}

void ModelMemory::admit(Id id) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  --model.waiting;
  ++model.open;
  model.used = ++clock_;
}

void ModelMemory::abandon(Id id) {
  const std::lock_guard lock(mu_);
  --at(id).waiting;
  change();
}

void ModelMemory::leave(Id id, std::optional<Seconds> keep_alive) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  --model.open;
  model.used = ++clock_;
  model.stays = keep_alive ? keep_alive : model.idle_timeout;
  model.idle_since = Clock::now();
  change();
}

void ModelMemory::release(Id id) {
  const std::lock_guard lock(mu_);
  --at(id).pinned_open;
  change();
}

void ModelMemory::request_sleep(Id id, SleepLevel level) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  model.requested_level = std::max(model.requested_level, level);
  change();
}

// ---- the models' threads ----

ModelMemory::Action ModelMemory::next(Id id) {
  std::unique_lock lock(mu_);
  for (;;) {
    Model& model = at(id);
    if (const auto action = next_action(model)) return *action;
    if (const auto until = sleep_time(model)) {
      changed_.wait_until(lock, *until);
    } else {
      changed_.wait(lock);
    }
  }
}

std::optional<ModelMemory::Action> ModelMemory::poll(Id id) {
  const std::lock_guard lock(mu_);
  return next_action(at(id));
}

std::optional<ModelMemory::Action> ModelMemory::next_action(Model& model) {
  if (model.is_closed) return Action{Action::Kind::kEnd};
  if (decide()) changed_.notify_all();
  if (std::exchange(model.is_dispatched, true)) return std::nullopt;
  if (model.state == State::kWaking) return Action{Action::Kind::kWake};
  if (model.state == State::kLeaving) return Action{Action::Kind::kSleep, model.level};
  if (model.state != State::kRejecting) return std::nullopt;
  return Action{Action::Kind::kReject, model.level,
                "the model needs " + in_mb(model.bytes.awake) + ", and all models may take " + in_mb(budget_) +
                    "; raise models_memory, or give the model a smaller cache_max_entry_count"};
}

void ModelMemory::woke(Id id, const ModelBytes& bytes) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  model.state = State::kAwake;
  model.level = SleepLevel::kAwake;
  model.bytes = bytes;
  model.reserved_bytes = bytes.awake;
  model.idle_since = Clock::now();
  change();
}

void ModelMemory::failed(Id id) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  model.state = State::kAsleep;
  model.waiting = 0;
  model.reserved_bytes = model.level == SleepLevel::kWeights ? model.bytes.weights : 0;
  change();
}

void ModelMemory::slept(Id id, SleepLevel level) {
  const std::lock_guard lock(mu_);
  Model& model = at(id);
  model.state = State::kAsleep;
  model.level = level;
  model.requested_level = SleepLevel::kAwake;
  model.reserved_bytes = level == SleepLevel::kWeights ? model.bytes.weights : 0;
  change();
}

ModelMemory::Report ModelMemory::report(Id id) const {
  using Reported = Report::State;
  const std::lock_guard lock(mu_);
  const Model& model = models_.at(id);
  const auto now = Clock::now();
  Report report;
  // Reported as awake while it still holds everything.
  const bool still_has_all =
      model.state == State::kLeaving && model.reserved_bytes > 0 && model.reserved_bytes >= model.bytes.awake;
  const bool is_awake = model.state == State::kAwake || still_has_all;
  report.state = model.state == State::kWaking ? Reported::kWaking : is_awake ? Reported::kAwake : Reported::kAsleep;
  report.level = is_awake ? SleepLevel::kAwake : model.level;
  report.bytes = model.reserved_bytes;
  report.awake_bytes = model.bytes.awake;
  report.all_bytes = used_bytes();
  report.waiting = model.waiting;
  report.wakes = model.wakes;
  if (model.open + model.waiting == 0) report.idle_seconds = Seconds(now - model.idle_since).count();
  if (const auto until = sleep_time(model)) report.sleeps_in = std::max(0.0, Seconds(*until - now).count());
  return report;
}

// ---- decisions ----

size_t ModelMemory::used_bytes() const {
  size_t bytes = 0;
  for (const auto& [id, model] : models_) bytes += model.reserved_bytes;
  return bytes;
}

// When a model that nothing is asked of sleeps; none: never.
std::optional<ModelMemory::Clock::time_point> ModelMemory::sleep_time(const Model& model) const {
  const bool has_memory =
      model.state == State::kAwake || (model.state == State::kAsleep && model.level == SleepLevel::kWeights);
  if (!has_memory || !model.is_idle() || model.waiting > 0 || !model.stays) return std::nullopt;
  if (model.stays->count() < 0 || model.stays->count() > kForever) return std::nullopt;
  return model.idle_since + std::chrono::ceil<Clock::duration>(*model.stays);
}

// A change may lead to more.
void ModelMemory::change() {
  decide();
  changed_.notify_all();
}

// Whether a model has something else to do than before.
bool ModelMemory::decide() {
  has_turned_ = false;
  serve_line();
  const auto now = Clock::now();
  for (auto& [id, model] : models_) update(model, now);
  return has_turned_;
}

void ModelMemory::serve_line() {
  std::vector<Model*> line;
  for (auto& [id, model] : models_) {
    model.is_in_the_way = false;
    if (model.waiting > 0 && model.state != State::kWaking && model.state != State::kRejecting) line.push_back(&model);
  }
  if (const size_t used = used_bytes(); used > budget_) clear(used - budget_, nullptr);
  std::ranges::sort(line, {}, &Model::arrival);
  for (Model* model : line) {
    if (model->state == State::kLeaving || !make_room(*model)) return;
  }
}

// Takes the memory that a model lacks, or asks for it. False: it has to wait, and so have those after it in line.
bool ModelMemory::make_room(Model& model) {
  if (model.bytes.awake > budget_) {
    set_state(model, State::kRejecting);
    return true;
  }
  const size_t lacks = model.bytes.awake - std::min(model.bytes.awake, model.reserved_bytes);
  const size_t free = budget_ - std::min(budget_, used_bytes());
  if (lacks > free) {
    clear(lacks - free, &model);
    return false;
  }
  if (model.level != SleepLevel::kAwake) ++model.wakes;
  model.stays = model.idle_timeout;  // until a request says otherwise, which may end before the model is awake
  model.reserved_bytes += lacks;
  set_state(model, State::kWaking);
  return true;
}

// Marks those that were used least recently, until so many bytes will be free; `needy`: for whom, also those that have
// requests.
void ModelMemory::clear(size_t bytes, const Model* needy) {
  std::vector<Model*> others;
  size_t comes = 0;
  for (auto& [id, other] : models_) {
    if (&other == needy || other.state == State::kWaking) continue;
    if (other.state == State::kLeaving && other.level == SleepLevel::kNothing) {
      comes += other.reserved_bytes;
    } else if (other.reserved_bytes > 0 && (needy != nullptr || other.is_idle())) {
      others.push_back(&other);
    }
  }
  std::ranges::sort(others, {}, [](const Model* other) { return std::pair(!other->is_idle(), other->used); });
  for (Model* other : others) {
    if (comes >= bytes) return;
    comes += other->reserved_bytes;
    other->is_in_the_way = true;
  }
}

// Has a model do what needs no memory.
void ModelMemory::update(Model& model, Clock::time_point now) {
  if (model.state == State::kAwake && model.waiting > 0 && !model.is_in_the_way) {
    return set_state(model, State::kWaking);  // only to take what waits
  }
  const bool is_at_rest = model.state == State::kAwake || model.state == State::kAsleep;
  if (!is_at_rest || !model.is_idle()) return;
  const auto until = sleep_time(model);
  if (model.is_in_the_way || (until && *until <= now)) {
    model.level = SleepLevel::kNothing;
  } else if (model.requested_level != SleepLevel::kAwake && model.waiting == 0) {
    model.level = std::max(model.level, model.requested_level);
  } else {
    return;
  }
  set_state(model, State::kLeaving);
}

void ModelMemory::set_state(Model& model, State state) {
  model.state = state;
  model.is_dispatched = false;
  has_turned_ = true;
}

}  // namespace turbomind
