#include "model/worker/step_channel.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>

#include "base/error.h"

namespace turbomind {

namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Returns when `word` is no longer `value`, when it was woken, or after `timeout`; the caller looks again.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{seconds.count(), (timeout - seconds).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

// Wakes all that wait for `word`, in any process.
void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

constexpr uint64_t kVersion = 6;
constexpr size_t kPage = 4096;

// Whether `number` is that one or after it; numbers of orders start from 0 after the largest.
bool has_reached(uint32_t number, uint32_t other) {
  return static_cast<int32_t>(number - other) >= 0;
}

// Of all that engine and worker read and write, so that each knows the other's build has it alike (FNV-1a).
uint64_t layout_hash() {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (const size_t value :
       {size_t{kVersion}, sizeof(ChannelShape), sizeof(ChannelSpan), sizeof(Order), sizeof(ChannelChoice)})
    add(value);
  ChannelChoice choice;
  const auto* begin = reinterpret_cast<const std::byte*>(&choice);
  visit_fields(choice, [&](std::string_view name, const auto& field) {
    for (const char letter : name) add(static_cast<unsigned char>(letter));
    add(static_cast<size_t>(reinterpret_cast<const std::byte*>(&field) - begin));
    add(sizeof(field));
  });
  return hash;
}

Error unavailable(const std::string& what) {
  return {ErrorCode::kUnavailable, "memory shared with workers: " + what + ": " + std::strerror(errno)};
}

}  // namespace

struct StepChannel::Rank {
  alignas(64) std::atomic<uint32_t> done{0};
  std::atomic<uint32_t> failed{0};  // the first order that failed; 0: none did
  uint32_t text_bytes = 0;
  char text[kTextBytes];
};

struct StepChannel::Header {
  uint64_t layout = layout_hash();
  ChannelShape shape;
  Order orders[kMaxOrders];
  alignas(64) std::atomic<uint32_t> given{1};
  Rank ranks[kMaxRanks];
};

StepChannel::StepChannel(const ChannelShape& shape) {
  lay_out(shape);
  fd_ = FileDescriptor(memfd_create("lmdeploy-steps", MFD_CLOEXEC));
  if (!fd_ || ftruncate(fd(), static_cast<off_t>(bytes_)) != 0) throw unavailable("it cannot be made");
  map();
  (new (memory_.get()) Header())->shape = shape;
}

StepChannel::StepChannel(int fd) : fd_(fd) {
  struct stat file{};
  if (fstat(fd, &file) != 0 || static_cast<size_t>(file.st_size) < sizeof(Header)) {
    throw invalid_argument("file descriptor " + std::to_string(fd) + " is no memory of an engine");
  }
  bytes_ = static_cast<size_t>(file.st_size);
  map();
  lay_out(shape());
  if (header().layout != layout_hash() || bytes_ != static_cast<size_t>(file.st_size)) {
    throw invalid_argument("the engine is of another version than its worker");
  }
}

void StepChannel::Unmap::operator()(std::byte* memory) const {
  munmap(memory, bytes);
}

void StepChannel::lay_out(const ChannelShape& shape) {
  size_t end = sizeof(Header);
  const auto reserve = [&](size_t count, size_t size) {
    const size_t begin = (end + kPage - 1) / kPage * kPage;
    end = begin + count * size;
    return begin;
  };
  const auto rows = static_cast<size_t>(shape.rows);
  const auto spans = static_cast<size_t>(shape.spans);
  logits_ = reserve(rows * static_cast<size_t>(shape.vocab_size), sizeof(float));
  hidden_ = reserve(rows * static_cast<size_t>(shape.hidden_size), sizeof(float));
  tokens_ = reserve(rows, sizeof(int32_t));
  spans_ = reserve(spans, sizeof(ChannelSpan));
  blocks_ = reserve(static_cast<size_t>(shape.blocks), sizeof(int32_t));
  const size_t seeing_tokens = shape.embedding_width > 0 ? rows : 0;
  embedded_tokens_ = reserve(seeing_tokens, sizeof(int32_t));
  embeddings_ = reserve(seeing_tokens * static_cast<size_t>(shape.embedding_width), sizeof(float));
  grid_positions_ = reserve(seeing_tokens * 3, sizeof(int32_t));
  choices_ = reserve(spans, sizeof(ChannelChoice));
  lists_ = reserve(static_cast<size_t>(shape.list_words), sizeof(int32_t));
  chosen_ = reserve(spans, sizeof(int32_t));
  logprobs_ = reserve(spans, sizeof(float));
  top_tokens_ = reserve(spans * kMaxChoiceLogprobs, sizeof(int32_t));
  top_logprobs_ = reserve(spans * kMaxChoiceLogprobs, sizeof(float));
  area_bytes_ = (end + kPage - 1) / kPage * kPage - tokens_;
  bytes_ = tokens_ + kAreas * area_bytes_;
}

void StepChannel::map() {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0);
  if (memory == MAP_FAILED) throw unavailable("it cannot be mapped");
  memory_ = {static_cast<std::byte*>(memory), Unmap{bytes_}};
}

StepChannel::Header& StepChannel::header() const {
  return *at<Header>(0);
}
StepChannel::Rank& StepChannel::rank(int index) const {
  return header().ranks[index];
}
const ChannelShape& StepChannel::shape() const {
  return header().shape;
}
Order& StepChannel::order(uint32_t number) const {
  return header().orders[number % kMaxOrders];
}

uint32_t StepChannel::given() const {
  return header().given.load(std::memory_order_relaxed);
}

uint32_t StepChannel::give() {
  const uint32_t number = header().given.fetch_add(1, std::memory_order_release) + 1;
  futex_wake(header().given);
  return number;
}

bool StepChannel::wait_done(int index, uint32_t number, std::chrono::nanoseconds timeout) const {
  const std::atomic<uint32_t>& done = rank(index).done;
  const uint32_t seen = done.load(std::memory_order_acquire);
  if (has_reached(seen, number)) return true;
  futex_wait(done, seen, timeout);
  return has_reached(done.load(std::memory_order_acquire), number);
}

bool StepChannel::has_failed(int index, uint32_t number) const {
  const uint32_t failed = rank(index).failed.load(std::memory_order_acquire);
  return failed != 0 && has_reached(number, failed);
}

std::string StepChannel::text(int index) const {
  const Rank& state = rank(index);
  return {state.text, std::min<size_t>(state.text_bytes, kTextBytes)};
}

bool StepChannel::wait_order(uint32_t after, std::chrono::nanoseconds timeout) const {
  const std::atomic<uint32_t>& given = header().given;
  if (given.load(std::memory_order_acquire) != after) return true;
  futex_wait(given, after, timeout);
  return given.load(std::memory_order_acquire) != after;
}

void StepChannel::finish(int index, uint32_t number, bool has_failed, std::string_view text) {
  Rank& rank_state = rank(index);
  if (rank_state.failed.load(std::memory_order_relaxed) == 0) {
    rank_state.text_bytes = static_cast<uint32_t>(std::min(text.size(), kTextBytes));
    std::memcpy(rank_state.text, text.data(), rank_state.text_bytes);
    if (has_failed) rank_state.failed.store(number, std::memory_order_release);
  }
  rank_state.done.store(number, std::memory_order_release);
  futex_wake(rank_state.done);
}

}  // namespace turbomind
