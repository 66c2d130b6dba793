// Reads and writes files of cache blocks on a thread of its own.
//
//   step thread:  write()  --> queue -->  its thread --> BlockFiles
//                 ask()    --> queue -->  its thread <-- BlockFiles
//                 take_read() <-- queue <--'
//
// The step thread never waits: what a queue has no room for is not written, or is read later. What is asked for comes
// before what is to be written, and is found among that too. Both queues are bounded by bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/disk/block_files.h"

namespace turbomind {

// What files may have of a prefix. What is asked does not change from then on.
class DiskRead {
 public:
  virtual ~DiskRead() = default;

  struct Item {
    int index = 0;  // of the block in the prefix
    int group = 0;
    int tokens = 0;  // of the block: all that it has, or its beginning
    size_t bytes = 0;
    BlockKey key;
  };
  struct Choice {
    std::vector<const Item*> items;  // in the order to read them
    double compute_seconds = -1;     // that computing what they hold would take; negative: nobody knows
  };
  // Chooses what to read by what there is. Called by the thread that reads.
  virtual Choice choose(const std::function<bool(const Item&)>& is_there) const = 0;

  std::atomic<bool> is_wanted{true};  // false: who asked has gone
};

class BlockTransfers {
 public:
  static constexpr size_t kQueuedBytes = size_t{64} << 20;

  // `files` must outlive it. `wake` is called on its thread when there is something to take, or room again.
  // `look_interval`: of BlockFiles::mark_used().
  BlockTransfers(BlockFiles& files, std::chrono::milliseconds look_interval, std::function<void()> wake);
  // Writes what is queued.
  ~BlockTransfers();

  // Whether write() would take this many bytes.
  bool has_room(size_t bytes) const;
  void write(BlockKey key, std::vector<std::byte> content, int depth);
  // Whether everything was written.
  bool is_written() const;
  // Forgets what is still to be written, and removes all files.
  void drop_all();

  // Has `work` called on its thread, whenever there is nothing else, for as long as it returns true.
  void when_idle(std::function<bool()> work);

  void ask(std::shared_ptr<const DiskRead> read);
  struct Part {
    std::shared_ptr<const DiskRead> read;
    const DiskRead::Item* item = nullptr;  // null: that was all
    std::vector<std::byte> content;
  };
  // The next part that has come; at most one of each request has no item, and it is the last.
  std::optional<Part> take_read();
  bool has_read() const;

  struct Counts {
    int64_t written = 0;  // blocks
    int64_t read = 0;
    int64_t not_worth = 0;  // requests for which computing was estimated to be faster
  };
  Counts counts() const;

 private:
  struct Write {
    BlockKey key;
    std::vector<std::byte> content;
    int depth = 0;
  };

  void run();
  void serve(const std::shared_ptr<const DiskRead>& read);
  const Write* queued(const Sha256& name) const;
  bool is_worth(const DiskRead::Choice& choice);
  // Waits for room. False: nobody wants it any more.
  bool put(Part&& part);

  BlockFiles& files_;
  const std::chrono::milliseconds look_interval_;
  const std::function<void()> wake_;
  double bytes_per_second_ = 1e9;  // of reading; the thread's

  mutable std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::deque<Write> writes_;
  std::deque<std::shared_ptr<const DiskRead>> asked_;
  std::deque<Part> parts_;
  std::function<bool()> idle_work_;  // empty: none
  size_t write_bytes_ = 0;
  size_t read_bytes_ = 0;
  Counts counts_;
  bool is_dropping_ = false;
  bool is_closing_ = false;
  bool is_busy_ = false;

  std::thread thread_;
};

}  // namespace turbomind
