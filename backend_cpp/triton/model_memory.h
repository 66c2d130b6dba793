// The models of a process: which are in memory, which wait for memory, and which make room for them.
//
//   asleep -- a request, first in line, and there is room --> waking -------> awake
//     ^                                                         ^ no longer     |
//     |                                                         | in the way    |
//     '--------------------- leaving <-- idle for long, asked to, or in the way-'
//
// Models wait in line in the order in which they were first asked for. The first one takes the memory of those that
// were used least recently: idle ones are put to sleep; one that has requests takes no more of them, which wait in line
// too, and sleeps when it has answered the others. So nothing that runs is disturbed, and nothing waits forever.
//
// Decides, and does nothing: a model's own thread asks next() what to do, does it and reports. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace turbomind {

enum class SleepLevel : uint8_t {
  kAwake,
  kWeights,  // keeps weights
  kNothing,
};

// Bytes that a model holds when it is awake, and when it keeps weights alone.
struct ModelBytes {
  size_t awake = 0;
  size_t weights = 0;
};

class ModelMemory {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = int;
  using Seconds = std::chrono::duration<double>;

  struct Action {
    enum class Kind : uint8_t {
      kWake,    // then woke() or failed()
      kSleep,   // then slept()
      kReject,  // reject what waits, for `reason`; then failed()
      kEnd,
    };
    Kind kind = Kind::kEnd;
    SleepLevel level = SleepLevel::kNothing;
    std::string reason = {};
  };

  struct Report {
    enum class State : uint8_t { kAsleep, kWaking, kAwake };
    State state = State::kAsleep;
    SleepLevel level = SleepLevel::kNothing;
    size_t bytes = 0;
    size_t awake_bytes = 0;
    size_t all_bytes = 0;                // of all models
    std::optional<double> idle_seconds;  // none: requests are open
    std::optional<double> sleeps_in;     // seconds; none: never, or it sleeps
    int waiting = 0;
    int64_t wakes = 0;
  };

  explicit ModelMemory(size_t budget = ~size_t{0}) : budget_(budget) {}
  // That of this process.
  static ModelMemory& instance();

  // Lowers the budget of all models.
  void limit(size_t budget);
  size_t budget() const;

  // Adds a model that sleeps. `bytes`: as far as they are known; `idle_timeout`: none: it never sleeps by itself.
  Id add(const ModelBytes& bytes, std::optional<Seconds> idle_timeout);
  // Takes memory for a model that nothing was asked of, if there is room: it is waking then.
  bool reserve(Id id);
  // next() returns kEnd from now on.
  void close(Id id);
  void remove(Id id);

  // ---- requests ----

  // Adds a request. True: it runs now. False: it waits, and admit() or abandon() follows.
  bool enter(Id id);
  // Keeps a model that is awake so until leave(), unnoticed. False: it is not.
  bool pin(Id id);
  // The model's own thread runs a request that waited, while the model is waking.
  void admit(Id id);
  // A request that waited has gone.
  void abandon(Id id);
  // A request has ended. `keep_alive`: how long the model then stays; negative: for good.
  void leave(Id id, std::optional<Seconds> keep_alive);
  // The end of what pin() began.
  void release(Id id);
  // Asks for sleep as soon as no request is open.
  void request_sleep(Id id, SleepLevel level);

  // ---- the model's own thread ----

  // Waits until there is something to do.
  Action next(Id id);
  // The same without waiting; none: there is nothing.
  std::optional<Action> poll(Id id);
  void woke(Id id, const ModelBytes& bytes);
  // Nothing waits any more.
  void failed(Id id);
  void slept(Id id, SleepLevel level);

  Report report(Id id) const;

 private:
  enum class State : uint8_t { kAsleep, kWaking, kAwake, kLeaving, kRejecting };

  struct Model {
    State state = State::kAsleep;
    SleepLevel level = SleepLevel::kNothing;  // of kAsleep: what it sleeps at; of kLeaving: will
    bool is_dispatched = false;               // next() has returned what its state is about
    ModelBytes bytes;
    size_t reserved_bytes = 0;
    int open = 0;
    int pinned_open = 0;  // by pin()
    int waiting = 0;
    uint64_t arrival = 0;  // in line, while requests wait
    uint64_t used = 0;     // larger: more recently
    bool is_in_the_way = false;
    SleepLevel requested_level = SleepLevel::kAwake;  // to sleep at
    std::optional<Seconds> idle_timeout;
    std::optional<Seconds> stays;  // after its last request
    Clock::time_point idle_since;
    int64_t wakes = 0;
    bool is_closed = false;

    bool is_idle() const { return open + pinned_open == 0; }
  };

  // mu_ is held by the callers of all of these.
  Model& at(Id id) { return models_.at(id); }
  void change();
  bool decide();
  void serve_line();
  bool make_room(Model& model);
  void clear(size_t bytes, const Model* needy);
  void update(Model& model, Clock::time_point now);
  void set_state(Model& model, State state);
  std::optional<Action> next_action(Model& model);
  std::optional<Clock::time_point> sleep_time(const Model& model) const;
  size_t used_bytes() const;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::map<Id, Model> models_;
  size_t budget_;
  uint64_t clock_ = 0;       // of arrivals and uses
  bool has_turned_ = false;  // a model has a new state since decide() began
  Id next_id_ = 1;
};

}  // namespace turbomind
