// Models that share memory: random histories against what must hold in each state, and the order of wakes.
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "triton/model_memory.h"

namespace turbomind::testing {

namespace {

using Kind = ModelMemory::Action::Kind;
using State = ModelMemory::Report::State;

constexpr ModelMemory::Seconds kAtOnce{0};

// The models' threads and callers, step by step, on one thread.
class Models {
 public:
  explicit Models(size_t budget, std::vector<size_t> sizes) : memory(budget), budget_(budget) {
    for (const size_t size : sizes) {
      const ModelBytes bytes{size, size / 2};
      models_.push_back({memory.add(bytes, std::nullopt), bytes, {}, 0, 0, false});
    }
  }

  ModelMemory memory;

  ModelMemory::Id id(int model) const { return at(model).id; }
  int count() const { return static_cast<int>(models_.size()); }
  int open(int model) const { return at(model).open; }
  int waiting(int model) const { return at(model).waiting; }
  int64_t failures() const { return failures_; }
  const std::vector<int>& woken() const { return woken_; }

  void enter(int model) {
    Model& own = at(model);
    ++(memory.enter(own.id) ? own.open : own.waiting);
    check();
  }
  void leave(int model, std::optional<ModelMemory::Seconds> keep_alive = std::nullopt) {
    --at(model).open;
    memory.leave(id(model), keep_alive);
    check();
  }
  void abandon(int model) {
    --at(model).waiting;
    memory.abandon(id(model));
    check();
  }

  // Begins what a model's thread is told, if anything. False: it would wait.
  bool begin(int model) {
    Model& own = at(model);
    if (own.action) return false;
    own.action = memory.poll(own.id);
    if (!own.action) return false;
    if (own.action->kind == Kind::kSleep) CHECK_EQUAL(own.open, 0);
    check();
    return true;
  }

  // Ends what it has begun; `fails`: a load does.
  bool end(int model, bool fails = false) {
    Model& own = at(model);
    if (!own.action) return false;
    const ModelMemory::Action action = *std::exchange(own.action, std::nullopt);
    if (action.kind == Kind::kSleep) {
      memory.slept(own.id, action.level);
      own.is_loaded = own.is_loaded && action.level == SleepLevel::kWeights;
    } else if (action.kind == Kind::kReject || (fails && !own.is_loaded)) {
      ++failures_;
      own.waiting = 0;
      memory.failed(own.id);
    } else {
      woken_.push_back(model);
      own.is_loaded = true;
      for (; own.waiting > 0; --own.waiting, ++own.open) memory.admit(own.id);
      memory.woke(own.id, own.bytes);
    }
    check();
    return true;
  }

  // Lets the threads work until none has anything to do.
  void run_until_idle() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (int model = 0; model < count(); ++model) {
        goes_on = begin(model) || goes_on;
        goes_on = end(model) || goes_on;
      }
    }
  }

  void check() const {
    size_t bytes = 0;
    for (const Model& model : models_) {
      const ModelMemory::Report report = memory.report(model.id);
      bytes += report.bytes;
      CHECK_EQUAL(report.waiting, model.waiting);
      if (model.open > 0) CHECK(report.state == State::kAwake || report.state == State::kWaking);
      if (report.state == State::kAwake) CHECK_EQUAL(report.bytes, model.bytes.awake);
    }
    CHECK(bytes <= budget_);
  }

 private:
  struct Model {
    ModelMemory::Id id;
    ModelBytes bytes;
    std::optional<ModelMemory::Action> action;
    int open;
    int waiting;
    bool is_loaded;
  };
  Model& at(int model) { return models_.at(static_cast<size_t>(model)); }
  const Model& at(int model) const { return models_.at(static_cast<size_t>(model)); }

  size_t budget_;
  std::vector<Model> models_;
  std::vector<int> woken_;
  int64_t failures_ = 0;
};

}  // namespace

TEST(models_share_memory_through_random_histories) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    std::vector<size_t> sizes;
    for (int i = 2 + below(4); i > 0; --i) sizes.push_back(static_cast<size_t>(2 + below(9)));
    Models models(static_cast<size_t>(10 + below(12)), sizes);
    for (int step = 0; step < 300; ++step) {
      const int model = below(models.count());
      switch (below(8)) {
        case 0:
        case 1:
          models.enter(model);
          break;
        case 2:
          if (models.open(model) > 0) models.leave(model, below(3) == 0 ? std::optional(kAtOnce) : std::nullopt);
          break;
        case 3:
          if (models.waiting(model) > 0 && models.memory.report(models.id(model)).state != State::kWaking) {
            models.abandon(model);
          }
          break;
        case 4:
          models.memory.request_sleep(models.id(model), below(2) == 0 ? SleepLevel::kWeights : SleepLevel::kNothing);
          break;
        case 5:
          models.end(model, below(4) == 0);
          break;
        default:
          models.begin(model);
      }
    }
    // Whatever happened, all that waits is served once what runs has ended.
    for (int round = 0; round < 4 * models.count(); ++round) {
      models.run_until_idle();
      for (int model = 0; model < models.count(); ++model) {
        while (models.open(model) > 0) models.leave(model);
      }
    }
    for (int model = 0; model < models.count(); ++model) CHECK_EQUAL(models.waiting(model), 0);
  }
}

TEST(models_that_fit_together_stay) {
  Models models(10, {5, 5, 5});
  for (const int model : {0, 1, 0, 1, 0}) {
    models.enter(model);
    models.run_until_idle();
    models.leave(model);
  }
  CHECK(models.woken() == (std::vector<int>{0, 1}));
  models.enter(2);  // in place of the one that was used least recently
  models.run_until_idle();
  CHECK(models.memory.report(models.id(1)).state == State::kAsleep);
  CHECK(models.memory.report(models.id(0)).state == State::kAwake);
}

TEST(models_wake_in_the_order_in_which_they_were_asked_for) {
  Models models(10, {10, 10, 10});
  models.enter(0);
  models.run_until_idle();
  models.enter(2);
  models.enter(1);
  models.enter(0);  // behind both, though it is awake: others wait for its memory
  models.run_until_idle();
  CHECK(models.woken() == (std::vector<int>{0}));
  for (const int model : {0, 2, 1}) {
    CHECK_EQUAL(models.open(model), 1);
    models.leave(model);
    models.run_until_idle();
  }
  CHECK(models.woken() == (std::vector<int>{0, 2, 1, 0}));
}

TEST(a_model_takes_requests_again_when_nobody_waits_for_its_memory) {
  Models models(10, {10, 10});
  models.enter(0);
  models.run_until_idle();
  models.enter(1);
  models.enter(0);
  CHECK_EQUAL(models.waiting(0), 1);
  models.abandon(1);
  models.run_until_idle();
  CHECK_EQUAL(models.open(0), 2);
}

TEST(a_model_that_never_fits_is_refused_with_both_sizes) {
  ModelMemory memory(10'000'000);
  const auto id = memory.add({30'000'000, 20'000'000}, std::nullopt);
  CHECK(!memory.reserve(id));
  CHECK(!memory.enter(id));
  const auto action = memory.poll(id);
  CHECK(action && action->kind == Kind::kReject);
  CHECK(action->reason.find("30 MB") != std::string::npos && action->reason.find("10 MB") != std::string::npos);
}

TEST(a_model_sleeps_when_its_time_is_over_and_says_when) {
  ModelMemory memory;
  const auto id = memory.add({8, 4}, ModelMemory::Seconds(1000));
  CHECK(memory.reserve(id));
  memory.woke(id, {8, 4});
  const double left = *memory.report(id).sleeps_in;
  CHECK(left > 900 && left <= 1000);
  for (const double keep_alive : {-1.0, 1e12, 0.0}) {
    CHECK(memory.enter(id));
    CHECK(!memory.report(id).idle_seconds);
    memory.leave(id, ModelMemory::Seconds(keep_alive));
    CHECK_EQUAL(memory.report(id).sleeps_in.has_value(), false);
    const auto action = memory.poll(id);
    CHECK_EQUAL(action.has_value(), keep_alive == 0);
    if (action) CHECK(action->kind == Kind::kSleep && action->level == SleepLevel::kNothing);
  }
  memory.slept(id, SleepLevel::kNothing);
  CHECK_EQUAL(memory.report(id).bytes, size_t{0});
}

}  // namespace turbomind::testing
