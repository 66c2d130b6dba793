// An engine's LoRA adapters: the registered ones, and which of them are in memory.
//
//   add ---> on disk --- a request names it ---> in memory --- evicted while unused ---> on disk
//
// Requests whose adapter is in memory pass through. Others wait here until a background thread has read it; the step
// thread only puts it in place. Eviction is LRU among unused adapters; if all are in use, the oldest request waits, and
// later ones wait until it has started, so that it is not starved.
//
// Adapters in memory, and the one being read, take at most `limit` bytes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/grammar/grammar_queue.h"
#include "engine/request.h"
#include "model/model_runner.h"

namespace turbomind {

// A registered adapter.
struct AdapterInfo {
  std::string name;
  std::string note;  // from the caller; not used by the engine
};

class AdapterPool {
 public:
  // `deliver` receives requests whose adapter is in memory; `wake` asks the step thread to call settle(). Both may be
  // called on any thread. `has_contents`: compute LoadedAdapter::content.
  AdapterPool(ModelRunner& runner, size_t limit, std::function<void(Submission&&)> deliver, std::function<void()> wake,
              bool has_contents = false);
  ~AdapterPool() { stop(); }

  // ---- any thread ----

  // Opens an adapter's directory. Throws Error for a name in use, an adapter that does not fit the model, and one that
  // is larger than the limit.
  void add(const std::string& name, const std::string& directory, const std::string& note);
  // Refuses later requests; open ones are completed. Throws Error for an unknown name.
  void remove(const std::string& name);
  // Sorted by name.
  std::vector<AdapterInfo> list() const;

  // Throws Error(kInvalidArgument) for an unknown name.
  std::shared_ptr<const LoadedAdapter> find(const std::string& name) const;
  // Keeps a request's adapter, from find(), in memory for as long as the request exists. False: it has to wait.
  bool pin(Request& request);
  // Pins and delivers a request once its adapter is in memory, or delivers it with the error of reading it.
  void fetch(Submission&& submission);
  // Stops reading and delivering; drops waiting requests.
  void stop();

  // ---- the step thread ----

  // Places adapters that were read and drops evicted ones. Throws what the runner throws: a device fault.
  void finish_loads();

 private:
  struct Entry : LoadedAdapter {
    std::string note;
    std::shared_ptr<const AdapterFile> file;
    size_t bytes = 0;
    bool is_in_memory = false;
    bool is_removed = false;
    int users = 0;  // delivered requests
    uint64_t last_used = 0;
  };
  // For the step thread, in order: place an adapter in a slot, or drop the one there.
  struct Change {
    std::shared_ptr<Entry> entry;
    int slot = 0;
    std::unique_ptr<Adapter> read;  // null: drop
  };

  void release(const std::shared_ptr<Entry>& entry);
  void run();
  void serve(std::unique_lock<std::mutex>& lock);
  // mu_ is held.
  void keep(Request& request, const std::shared_ptr<Entry>& entry);
  void load_entry(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Entry>& entry);
  bool make_room(std::unique_lock<std::mutex>& lock, size_t bytes);
  void evict(const std::shared_ptr<Entry>& entry);

  AdapterSlots* slots_;  // null: the runner has no adapters
  const size_t limit_;
  const std::function<void(Submission&&)> deliver_;
  const std::function<void()> wake_;
  const bool has_contents_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::map<std::string, std::shared_ptr<Entry>> entries_;  // by name
  std::map<uint64_t, std::shared_ptr<Entry>> in_memory_;   // by id; includes removed ones that are in use
  std::deque<Submission> waiting_;
  std::vector<Change> changes_;
  size_t dropping_ = 0;    // slots not yet dropped by the step thread
  size_t used_ = 0;        // bytes
  bool is_short_ = false;  // the oldest request waits for an adapter to become unused
  uint64_t next_id_ = 1;
  uint64_t clock_ = 0;
  int next_slot_ = 1;
  bool is_stopping_ = false;

  std::thread thread_;
};

}  // namespace turbomind
