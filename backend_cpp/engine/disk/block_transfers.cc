#include "engine/disk/block_transfers.h"

#include <algorithm>
#include <utility>

#include "base/cpu_share.h"

namespace turbomind {

namespace {

constexpr int kNice = 5;            // steps go first
constexpr double kNewShare = 0.3;   // of a measurement in the estimate
constexpr double kOptimism = 1.05;  // an estimate that keeps from reading would never be corrected otherwise

}  // namespace

BlockTransfers::BlockTransfers(BlockFiles& files, std::chrono::milliseconds poll_interval, std::function<void()> wake)
    : files_(files), poll_interval_(poll_interval), wake_(std::move(wake)), thread_([this] { run(); }) {}

BlockTransfers::~BlockTransfers() {
  {
    const std::lock_guard lock(mu_);
    is_closing_ = true;
    requested_.clear();
    changed_.notify_all();
  }
  thread_.join();
}

// ---- the step thread ----

bool BlockTransfers::has_room(size_t bytes) const {
  const std::lock_guard lock(mu_);
  return writes_.empty() || write_bytes_ + bytes <= kQueuedBytes;
}

void BlockTransfers::write(BlockKey key, std::vector<std::byte> content, int depth) {
  const std::lock_guard lock(mu_);
  write_bytes_ += content.size();
  writes_.push_back({std::move(key), std::move(content), depth});
  changed_.notify_all();
}

bool BlockTransfers::is_written() const {
  const std::lock_guard lock(mu_);
  return writes_.empty() && !is_busy_;
}

void BlockTransfers::drop_all() {
  const std::lock_guard lock(mu_);
  is_dropping_ = true;
  changed_.notify_all();
}

void BlockTransfers::when_idle(std::function<bool()> work) {
  const std::lock_guard lock(mu_);
  idle_work_ = std::move(work);
  changed_.notify_all();
}

void BlockTransfers::request(std::shared_ptr<const DiskRead> read) {
  const std::lock_guard lock(mu_);
  requested_.push_back(std::move(read));
  changed_.notify_all();
}

std::optional<BlockTransfers::Part> BlockTransfers::take_read() {
  const std::lock_guard lock(mu_);
  if (parts_.empty()) return std::nullopt;
  Part part = std::move(parts_.front());
  parts_.pop_front();
  read_bytes_ -= part.content.size();
  changed_.notify_all();
  return part;
}

bool BlockTransfers::has_read() const {
  const std::lock_guard lock(mu_);
  return !parts_.empty();
}

TransferCounts BlockTransfers::counts() const {
  const std::lock_guard lock(mu_);
  return counts_;
}

// ---- its thread ----

void BlockTransfers::run() {
  lower_thread_priority(kNice);
  auto refreshed = std::chrono::steady_clock::now();
  std::unique_lock lock(mu_);
  while (true) {
    const bool is_woken = changed_.wait_for(lock, poll_interval_, [this] {
      return is_closing_ || is_dropping_ || !requested_.empty() || !writes_.empty() || idle_work_;
    });
    if (is_closing_ && writes_.empty() && !is_dropping_) break;
    is_busy_ = true;
    work(lock);
    is_busy_ = false;
    lock.unlock();
    if (is_woken) wake_();
    if (std::chrono::steady_clock::now() - refreshed >= poll_interval_) {
      files_.refresh_used();
      if (files_.has_changes()) wake_();
      refreshed = std::chrono::steady_clock::now();
    }
    lock.lock();
  }
  lock.unlock();
  files_.refresh_used();
}

// Does what is to be done first, without the lock.
void BlockTransfers::work(std::unique_lock<std::mutex>& lock) {
  if (is_dropping_) {
    is_dropping_ = false;
    writes_.clear();
    write_bytes_ = 0;
    lock.unlock();
    files_.drop_all();
    lock.lock();
  } else if (!requested_.empty()) {
    const std::shared_ptr<const DiskRead> read = std::move(requested_.front());
    requested_.pop_front();
    lock.unlock();
    serve(read);
    lock.lock();
  } else if (!writes_.empty()) {
    const Write next = std::move(writes_.front());
    writes_.pop_front();
    write_bytes_ -= next.content.size();
    lock.unlock();
    const bool is_written = files_.write(next.key, next.content, next.depth);
    lock.lock();
    if (is_written) ++counts_.written;
  } else if (idle_work_) {
    const std::function<bool()> idle_work = std::move(idle_work_);
    lock.unlock();
    const bool has_more = idle_work();
    lock.lock();
    idle_work_ = has_more ? idle_work : nullptr;
  }
}

void BlockTransfers::serve(const std::shared_ptr<const DiskRead>& read) {
  const auto is_there = [this](const DiskRead::Item& item) {
    return queued(item.key.name) != nullptr || files_.has(item.key, item.bytes);
  };
  const DiskRead::Choice choice = read->choose(is_there);
  if (is_worth(choice)) {
    for (const DiskRead::Item* item : choice.items) {
      if (!read->is_requested) break;
      std::vector<std::byte> content;
      if (const Write* queued_write = queued(item->key.name)) {
        content = queued_write->content;
      } else {
        content.resize(item->bytes);
        const auto start = std::chrono::steady_clock::now();
        if (!files_.read(item->key, content, item->index)) break;
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        const double rate = static_cast<double>(item->bytes) / std::max(seconds.count(), 1e-9);
        bytes_per_second_ = 1 / ((1 - kNewShare) / bytes_per_second_ + kNewShare / rate);
      }
      if (!put({read, item, std::move(content)})) break;
    }
  }
  put({read, nullptr, {}});
}

// Next content to write; it stays until this thread has written it.
const BlockTransfers::Write* BlockTransfers::queued(const Sha256& name) const {
  const std::lock_guard lock(mu_);
  const auto it = std::ranges::find(writes_, name, [](const Write& write) { return write.key.name; });
  return it == writes_.end() ? nullptr : &*it;
}

bool BlockTransfers::is_worth(const DiskRead::Choice& choice) {
  if (choice.items.empty()) return false;
  double bytes = 0;
  for (const DiskRead::Item* item : choice.items) bytes += static_cast<double>(item->bytes);
  if (choice.compute_seconds < 0 || bytes / bytes_per_second_ < choice.compute_seconds) return true;
  bytes_per_second_ *= kOptimism;
  return false;
}

bool BlockTransfers::put(Part&& part) {
  const bool is_end = part.item == nullptr;
  {
    std::unique_lock lock(mu_);
    while (!is_end && !is_closing_ && part.read->is_requested && !parts_.empty() &&
           read_bytes_ + part.content.size() > kQueuedBytes) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    }
    if (!is_end && (is_closing_ || !part.read->is_requested)) return false;
    if (!is_end) ++counts_.read;
    read_bytes_ += part.content.size();
    parts_.push_back(std::move(part));
  }
  wake_();
  return true;
}

}  // namespace turbomind
