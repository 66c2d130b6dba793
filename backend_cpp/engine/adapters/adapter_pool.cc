#include "engine/adapters/adapter_pool.h"

#include <utility>

#include "base/cpu_share.h"

namespace turbomind {

namespace {

constexpr int kPriority = 10;
constexpr size_t kMaxNameLen = 256;
constexpr size_t kMaxNoteLen = 64 << 10;

void check_name(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameLen) {
    throw invalid_argument("an adapter's name must have 1 to " + std::to_string(kMaxNameLen) + " bytes, got " +
                           std::to_string(name.size()));
  }
}

std::string mebibytes(size_t bytes) {
  return std::to_string((bytes + (size_t{1} << 20) - 1) >> 20) + " MiB";
}

}  // namespace

AdapterPool::AdapterPool(ModelRunner& runner, size_t limit, std::function<void(Submission&&)> deliver,
                         std::function<void()> wake, bool has_contents)
    : slots_(runner.traits().adapters),
      limit_(limit),
      deliver_(std::move(deliver)),
      wake_(std::move(wake)),
      has_contents_(has_contents) {
  thread_ = std::thread([this] { run(); });
}

void AdapterPool::stop() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  waiting_.clear();  // nobody adds any from here on; without the lock, which the release of adapters takes
}

void AdapterPool::add(const std::string& name, const std::string& directory, const std::string& note) {
  check_name(name);
  if (note.size() > kMaxNoteLen) throw invalid_argument("the note of adapter " + name + " is too long");
  const auto reject_taken = [&] {
    if (entries_.contains(name)) {
      throw invalid_argument("there is an adapter " + name + " already; unload it first, or choose another name");
    }
  };
  {
    const std::lock_guard lock(mu_);
    reject_taken();
  }
  auto entry = std::make_shared<Entry>();
  try {
    if (slots_ == nullptr) throw invalid_argument("this engine takes no adapters: " + directory);
    entry->file = slots_->open_adapter(directory);
  } catch (const Error& error) {
    throw Error(error.code(), "adapter " + name + ": " + error.what());
  }
  entry->bytes = entry->file->bytes();
  if (entry->bytes > limit_) {
    throw invalid_argument("adapter " + name + " takes " + mebibytes(entry->bytes) +
                           ", but all adapters together get " + mebibytes(limit_) + "; raise max_adapter_mib");
  }
  entry->name = name;
  entry->note = note;
  const std::lock_guard lock(mu_);
  reject_taken();
  entry->id = next_id_++;
  entries_.emplace(name, std::move(entry));
}

void AdapterPool::remove(const std::string& name) {
  {
    const std::lock_guard lock(mu_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) throw Error(ErrorCode::kNotFound, "there is no adapter " + name);
    const std::shared_ptr<Entry> entry = found->second;
    entries_.erase(found);
    entry->is_removed = true;
    if (entry->users == 0) evict(entry);
  }
  wake_();
}

std::vector<AdapterInfo> AdapterPool::list() const {
  const std::lock_guard lock(mu_);
  std::vector<AdapterInfo> list;
  for (const auto& [name, entry] : entries_) list.push_back({name, entry->note});
  return list;
}

std::shared_ptr<const LoadedAdapter> AdapterPool::find(const std::string& name) const {
  const std::lock_guard lock(mu_);
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::string known;
  for (const auto& [other, entry] : entries_) known += (known.empty() ? "" : ", ") + other;
  throw invalid_argument("lora_name: there is no adapter " + name +
                         (known.empty() ? "; none is loaded" : "; there are " + known));
}

bool AdapterPool::pin(Request& request) {
  const std::lock_guard lock(mu_);
  const auto found = in_memory_.find(request.adapter->id);
  if (found == in_memory_.end() || is_short_) return false;
  keep(request, found->second);
  return true;
}

void AdapterPool::keep(Request& request, const std::shared_ptr<Entry>& entry) {
  ++entry->users;
  request.adapter = std::shared_ptr<const Entry>(entry.get(), [this, entry](const Entry*) { release(entry); });
}

void AdapterPool::release(const std::shared_ptr<Entry>& entry) {
  bool leaves = false;
  {
    const std::lock_guard lock(mu_);
    entry->last_used = ++clock_;
    if (--entry->users > 0) return;
    leaves = entry->is_removed && entry->is_in_memory;
    if (leaves) evict(entry);
  }
  changed_.notify_all();
  if (leaves) wake_();
}

void AdapterPool::fetch(Submission&& submission) {
  if (pin(submission.request)) {
    deliver_(std::move(submission));
    return;
  }
  const std::lock_guard lock(mu_);
  if (is_stopping_) return;
  waiting_.push_back(std::move(submission));
  changed_.notify_all();
}

void AdapterPool::finish_loads() {
  std::vector<Change> changes;
  {
    const std::lock_guard lock(mu_);
    changes.swap(changes_);
  }
  for (Change& change : changes) {
    if (change.read == nullptr) {
      slots_->drop_adapter(change.slot);
      const std::lock_guard lock(mu_);
      --dropping_;
      changed_.notify_all();
      continue;
    }
    try {
      slots_->set_adapter(change.slot, std::move(change.read));
      change.entry->failure.reset();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      change.entry->failure = Error(error.code(), "adapter " + change.entry->name + ": " + error.what());
      const std::lock_guard lock(mu_);
      in_memory_.erase(change.entry->id);
      change.entry->is_in_memory = false;
      used_ -= change.entry->bytes;
    }
  }
}

// ---- the reading thread ----

void AdapterPool::run() {
  // Steps go first where they compute on the same processors.
  lower_thread_priority(kPriority);
  std::unique_lock lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    serve(lock);
  }
}

// Delivers the oldest request.
void AdapterPool::serve(std::unique_lock<std::mutex>& lock) {
  const auto entry =
      std::static_pointer_cast<Entry>(std::const_pointer_cast<LoadedAdapter>(waiting_.front().request.adapter));
  std::optional<Error> failure;
  try {
    if (!entry->is_in_memory) load_entry(lock, entry);
  } catch (const Error& error) {
    failure = Error(error.code(), "adapter " + entry->name + ": " + error.what());
  } catch (const std::exception& error) {
    failure = internal_error("adapter " + entry->name + " could not be read: " + error.what());
  }
  if (is_stopping_) return;
  Submission submission = std::move(waiting_.front());
  waiting_.pop_front();
  submission.failure = std::move(failure);
  if (entry->is_in_memory) keep(submission.request, entry);
  lock.unlock();
  // Where nobody waits for it any more, it ends here, and its adapter is released without the lock.
  deliver_(Submission(std::move(submission)));
  lock.lock();
}

void AdapterPool::load_entry(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Entry>& entry) {
  if (!make_room(lock, entry->bytes)) return;
  used_ += entry->bytes;
  lock.unlock();
  std::unique_ptr<Adapter> adapter;
  std::string content;
  try {
    adapter = entry->file->read();
    if (has_contents_) content = entry->file->content();
  } catch (...) {
    lock.lock();
    used_ -= entry->bytes;
    throw;
  }
  lock.lock();
  entry->slot = next_slot_++;
  entry->content = std::move(content);
  entry->is_in_memory = true;
  in_memory_[entry->id] = entry;
  changes_.push_back({entry, entry->slot, std::move(adapter)});
}

// False: stopping.
bool AdapterPool::make_room(std::unique_lock<std::mutex>& lock, size_t bytes) {
  while (!is_stopping_ && (used_ + bytes > limit_ || dropping_ > 0)) {
    std::shared_ptr<Entry> oldest;
    for (const auto& [id, entry] : in_memory_) {
      if (entry->users == 0 && (!oldest || entry->last_used < oldest->last_used)) oldest = entry;
    }
    if (used_ + bytes > limit_ && oldest) {
      evict(oldest);
      lock.unlock();
      wake_();
      lock.lock();
    } else {
      is_short_ = used_ + bytes > limit_;
      changed_.wait(lock);
      is_short_ = false;
    }
  }
  return !is_stopping_;
}

void AdapterPool::evict(const std::shared_ptr<Entry>& entry) {
  if (!entry->is_in_memory) return;
  in_memory_.erase(entry->id);
  entry->is_in_memory = false;
  used_ -= entry->bytes;
  ++dropping_;
  changes_.push_back({entry, entry->slot, nullptr});
}

}  // namespace turbomind
