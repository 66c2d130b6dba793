// I/O thread for files of cache blocks.
//
//   step thread:  write()  --> queue -->  its thread --> BlockFiles
//                 ask()    --> queue -->  its thread <-- BlockFiles
//                 take_read() <-- queue <--'
//
// The step thread never waits: a write that does not fit in the queue is dropped, a read is delayed. Reads come before
// writes, and also find blocks that are queued for writing. Both queues are bounded in bytes.
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

// A read of a prefix's blocks. Immutable once it is queued.
class DiskRead {
 public:
  virtual ~DiskRead() = default;

  struct Item {
    int index = 0;  // of the block in the prefix
    int group = 0;
    int tokens = 0;  // of the whole or partial block
    size_t bytes = 0;
    BlockKey key;
  };
  struct Choice {
    std::vector<const Item*> items;  // in the order to read them
    double compute_seconds = -1;     // to recompute them; negative: unknown
  };
  // Chooses the items to read among the existing ones. Called on the transfer thread.
  virtual Choice choose(const std::function<bool(const Item&)>& is_there) const = 0;

  std::atomic<bool> is_requested{true};  // false: cancelled
};

class BlockTransfers {
 public:
  static constexpr size_t kQueuedBytes = size_t{64} << 20;

  // `files` must outlive it. `wake` is called on its thread when a read can be taken or a queue has room again.
  // `poll_interval`: between calls of BlockFiles::refresh_used().
  BlockTransfers(BlockFiles& files, std::chrono::milliseconds poll_interval, std::function<void()> wake);
  // Completes queued writes.
  ~BlockTransfers();

  // Whether write() would take this many bytes.
  bool has_room(size_t bytes) const;
  void write(BlockKey key, std::vector<std::byte> content, int depth);
  // Whether all queued writes are done.
  bool is_written() const;
  // Drops queued writes and removes all files.
  void drop_all();

  // Calls `work` on its thread whenever it is idle, until `work` returns false.
  void when_idle(std::function<bool()> work);

  void request(std::shared_ptr<const DiskRead> read);
  struct Part {
    std::shared_ptr<const DiskRead> read;
    const DiskRead::Item* item = nullptr;  // null: the read is complete
    std::vector<std::byte> content;
  };
  // The next part that was read. The last part of each read has no item.
  std::optional<Part> take_read();
  bool has_read() const;

  TransferCounts counts() const;

 private:
  struct Write {
    BlockKey key;
    std::vector<std::byte> content;
    int depth = 0;
  };

  void run();
  void work(std::unique_lock<std::mutex>& lock);
  void serve(const std::shared_ptr<const DiskRead>& read);
  const Write* queued(const Sha256& name) const;
  bool is_worth(const DiskRead::Choice& choice);
  // Waits for room. False: the read was cancelled.
  bool put(Part&& part);

  BlockFiles& files_;
  const std::chrono::milliseconds poll_interval_;
  const std::function<void()> wake_;
  double bytes_per_second_ = 1e9;  // of reads; used by the thread only

  mutable std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::deque<Write> writes_;
  std::deque<std::shared_ptr<const DiskRead>> requested_;
  std::deque<Part> parts_;
  std::function<bool()> idle_work_;  // empty: none
  size_t write_bytes_ = 0;
  size_t read_bytes_ = 0;
  TransferCounts counts_;
  bool is_dropping_ = false;
  bool is_closing_ = false;
  bool is_busy_ = false;

  std::thread thread_;
};

}  // namespace turbomind
