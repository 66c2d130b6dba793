// The low-rank adapters of an engine: which there are, and which of them are in memory.
//
//   add ---> on disk --- a request names it ---> in memory --- room is needed, nobody uses it ---> on disk
//
// Requests whose adapter is in memory pass by. Others wait here until a thread alongside the steps has read it; the
// step thread only takes it over. Of the adapters that nobody uses, the least recently used leave when room is needed;
// where all are in use the oldest request waits, and whatever comes after it as well, so that it gets its turn.
//
// Adapters in memory, and the one that is being read, take at most `limit` bytes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/grammar/grammar_queue.h"
#include "engine/request.h"
#include "model/model_runner.h"

namespace turbomind {

// What is known of an adapter.
struct AdapterInfo {
  std::string name;
  std::string note;  // that came with it; the engine makes nothing of it
};

class AdapterPool {
 public:
  // `deliver` gets requests whose adapter is in memory; `wake`: the step thread is to call settle(). Both on any
  // thread. `has_contents`: adapters' contents are wanted (LoadedAdapter::content).
  AdapterPool(ModelRunner& runner, size_t limit, std::function<void(Submission&&)> deliver, std::function<void()> wake,
              bool has_contents = false);
  ~AdapterPool() { stop(); }

  // ---- any thread ----

  // Opens an adapter's directory. Throws Error for a name that is taken, an adapter that does not fit the model, and
  // one that is larger than the limit.
  void add(const std::string& name, const std::string& directory, const std::string& note);
  // Later requests are refused; responses that are open end as if it had stayed. Throws Error for an unknown name.
  void remove(const std::string& name);
  // In the order of their names.
  std::vector<AdapterInfo> list() const;

  // Throws Error(kInvalidArgument) for an unknown name.
  std::shared_ptr<const LoadedAdapter> find(const std::string& name) const;
  // Keeps a request's adapter, which find() gave, in memory as long as the request has it; false: it has to wait.
  bool pin(Request& request);
  // Pins and delivers a request when its adapter is in memory; or delivers it with what kept that from being read.
  void fetch(Submission&& submission);
  // Nothing is read or delivered any more; requests that wait are dropped.
  void stop();

  // ---- the step thread ----

  // Gives the runner what was read, and takes from it what left. Throws what the runner throws: a device fault.
  void settle();

 private:
  struct Entry : LoadedAdapter {
    std::string note;
    std::shared_ptr<const AdapterFile> file;
    size_t bytes = 0;
    bool is_in_memory = false;
    bool is_removed = false;
    int users = 0;  // requests that were delivered
    uint64_t last_used = 0;
  };
  // What the step thread is to do, in order: place what was read, or drop what is in a slot.
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
  void bring(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Entry>& entry);
  bool make_room(std::unique_lock<std::mutex>& lock, size_t bytes);
  void evict(const std::shared_ptr<Entry>& entry);

  AdapterSlots* slots_;  // null: the runner takes none
  const size_t limit_;
  const std::function<void(Submission&&)> deliver_;
  const std::function<void()> wake_;
  const bool has_contents_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::map<std::string, std::shared_ptr<Entry>> entries_;  // by name
  std::map<uint64_t, std::shared_ptr<Entry>> in_memory_;   // by id; removed ones that are in use as well
  std::deque<Submission> waiting_;
  std::vector<Change> changes_;
  size_t dropping_ = 0;    // slots that the step thread has yet to drop
  size_t used_ = 0;        // bytes
  bool is_short_ = false;  // the oldest request waits until an adapter is not used any more
  uint64_t next_id_ = 1;
  uint64_t clock_ = 0;
  int next_slot_ = 1;
  bool is_stopping_ = false;

  std::thread thread_;
};

}  // namespace turbomind
