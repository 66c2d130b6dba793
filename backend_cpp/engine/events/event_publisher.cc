#include "engine/events/event_publisher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/json.h"

namespace turbomind {

namespace {

constexpr auto kStartTimeout = std::chrono::seconds(60);
constexpr int kPollMilliseconds = 50;  // how often it is asked meanwhile whether that is still wanted
constexpr auto kEndTimeout = std::chrono::seconds(2);
// Between two attempts to start the process again.
constexpr std::chrono::milliseconds kFirstDelay{500};
constexpr std::chrono::milliseconds kMaxDelay{30'000};

// A JSON list, of items as `text_of` writes them.
template <class Item, class TextOf>
std::string list_of(const std::vector<Item>& items, TextOf text_of) {
  std::string list;
  for (const Item& item : items) list += (list.empty() ? "[" : ",") + text_of(item);
  return list.empty() ? "[]" : list + "]";
}

template <class T>
std::string list_of(const std::vector<T>& numbers) {
  return list_of(numbers, [](T number) { return std::to_string(number); });
}

const char* medium_of(CacheTier tier) {
  constexpr const char* kMedia[] = {R"(,"medium":"GPU")", R"(,"medium":"CPU")", R"(,"medium":"DISK")"};
  return kMedia[static_cast<size_t>(tier)];
}

std::string stored_event(const CacheEvent& event, int block_len) {
  std::string text = R"({"type":"BlockStored","block_hashes":)" + list_of(event.hashes);
  text += R"(,"parent_block_hash":)" + (event.parent ? std::to_string(*event.parent) : "null");
  text += R"(,"token_ids":)" + list_of(event.tokens);
  text += R"(,"block_size":)" + std::to_string(block_len) + R"(,"lora_id":null)" + medium_of(event.tier);
  text += R"(,"lora_name":)" + (event.lora_name.empty() ? "null" : quoted(event.lora_name));
  if (std::ranges::all_of(event.extra_keys, &std::string::empty)) return text + "}";
  const auto keys_or_null = [](const std::string& keys) { return keys.empty() ? "null" : keys; };
  return text + R"(,"extra_keys":)" + list_of(event.extra_keys, keys_or_null) + "}";
}

std::string event_text(const CacheEvent& event, int block_len) {
  if (event.kind == CacheEventKind::kStored) return stored_event(event, block_len);
  if (event.kind == CacheEventKind::kCleared) return R"({"type":"AllBlocksCleared"})";
  return R"({"type":"BlockRemoved","block_hashes":)" + list_of(event.hashes) + medium_of(event.tier) + "}";
}

// A JSON object in a line: what lmdeploy/kv_events/publisher.py reads.
std::string event_line(const CacheEventBatch& batch, int block_len) {
  const auto text_of = [block_len](const CacheEvent& event) { return event_text(event, block_len); };
  return R"({"sequence":)" + std::to_string(batch.sequence) + R"(,"events":)" + list_of(batch.events, text_of) + "}\n";
}

size_t bytes_of(const CacheEventBatch& batch) {
  size_t bytes = 0;
  for (const CacheEvent& event : batch.events) {
    bytes += event.hashes.size() * sizeof(uint64_t) + event.tokens.size() * sizeof(int32_t);
  }
  return bytes;
}

// The process's one line: what it says when it can publish, or why it cannot. Empty when it says nothing in time.
std::string first_line(int socket, const std::atomic<bool>& is_stopping) {
  std::string line;
  const auto end = std::chrono::steady_clock::now() + kStartTimeout;
  while (line.empty() || line.back() != '\n') {
    pollfd descriptor{socket, POLLIN, 0};
    if (is_stopping || std::chrono::steady_clock::now() > end) return "";
    if (poll(&descriptor, 1, kPollMilliseconds) <= 0) continue;
    char c = 0;
    if (recv(socket, &c, 1, 0) <= 0) return "";
    line += c;
  }
  return line;
}

}  // namespace

EventPublisher::EventPublisher(std::vector<std::string> command, int block_len, size_t max_bytes)
    : command_(std::move(command)), block_len_(block_len), max_bytes_(max_bytes) {
  start();
  thread_ = std::thread([this] { run(); });
}

EventPublisher::~EventPublisher() {
  {
    std::unique_lock lock(mu_);
    is_stopping_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kEndTimeout, [this] { return has_ended_; });
    // Ends a send that the process does not take.
    if (!has_ended_) shutdown(socket_.get(), SHUT_RDWR);
  }
  thread_.join();
  shutdown(socket_.get(), SHUT_WR);
  pollfd end{socket_.get(), POLLIN, 0};  // it closes its side when all is published
  poll(&end, 1, static_cast<int>(std::chrono::milliseconds(kEndTimeout).count()));
}

CacheEventSink::State EventPublisher::state() const {
  const std::lock_guard lock(mu_);
  return state_;
}

EventCounts EventPublisher::counts() const {
  const std::lock_guard lock(mu_);
  return counts_;
}

void EventPublisher::push(std::vector<CacheEvent>&& events) {
  const std::lock_guard lock(mu_);
  if (state_ == State::kLost) return;
  CacheEventBatch batch{static_cast<uint64_t>(counts_.event_batches++), std::move(events)};
  const size_t bytes = bytes_of(batch);
  // All that a cache holds may be more than the bound.
  if (state_ == State::kFollows && queued_bytes_ + bytes > max_bytes_) return lose();
  state_ = State::kFollows;
  queued_bytes_ += bytes;
  queue_.push_back(std::move(batch));
  changed_.notify_one();
}

void EventPublisher::lose() {
  state_ = State::kLost;
  ++counts_.event_losses;
  queue_.clear();
  queued_bytes_ = 0;
  changed_.notify_one();
}

// ---- the thread ----

void EventPublisher::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(ErrorCode::kUnavailable, "kv_events_config: no file descriptors are left");
  }
  FileDescriptor engine_end(ends[0]);
  FileDescriptor worker_end(ends[1]);
  auto process = std::make_unique<WorkerProcess>(command_, worker_end.get());
  worker_end = FileDescriptor();  // with the process, so that its end is seen
  const std::string line = first_line(engine_end.get(), is_stopping_);
  if (line.empty()) {
    const std::string end = process->how_it_ended();
    throw Error(ErrorCode::kUnavailable,
                "kv_events_config: the publisher " + (end.empty() ? "did not answer in a minute" : end));
  }
  const Json reply = Json::parse(line);
  if (const Json* error = reply.find("error")) throw invalid_argument("kv_events_config: " + error->as_string());
  const std::lock_guard lock(mu_);
  socket_ = std::move(engine_end);
  process_ = std::move(process);
}

void EventPublisher::run() {
  std::unique_lock lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || state_ == State::kLost || !queue_.empty(); });
    if (is_stopping_ && queue_.empty()) break;
    if (state_ == State::kLost) {
      state_ = State::kNeedsSnapshot;  // what comes now is as good as the first
      lock.unlock();
      wake_();
      lock.lock();
      continue;
    }
    const CacheEventBatch batch = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= bytes_of(batch);
    lock.unlock();
    const bool is_sent = send(event_line(batch, block_len_));
    lock.lock();
    if (!is_sent && !is_stopping_) start_again(lock);
    if (!is_sent && is_stopping_) break;
  }
  has_ended_ = true;
  changed_.notify_all();
}

bool EventPublisher::send(const std::string& line) {
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::send(socket_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

void EventPublisher::start_again(std::unique_lock<std::mutex>& lock) {
  lose();
  for (std::chrono::milliseconds delay = kFirstDelay; !is_stopping_; delay = std::min(2 * delay, kMaxDelay)) {
    changed_.wait_for(lock, delay, [this] { return is_stopping_.load(); });
    if (is_stopping_) return;
    lock.unlock();
    try {
      std::fprintf(stderr, "the publisher of KV events has ended: it is started again\n");
      process_.reset();
      start();
      lock.lock();
      return;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "the publisher of KV events could not be started again: %s\n", error.what());
      lock.lock();
    }
  }
}

}  // namespace turbomind
