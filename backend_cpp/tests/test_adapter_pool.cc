// Which adapters are in memory, and what requests for others wait for.
#include "engine/adapters/adapter_pool.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "tests/check.h"
#include "tests/stub_runner.h"

namespace turbomind::testing {

namespace {

struct EmptyAdapter final : Adapter {};

// An adapter of a byte for each character of the directory's name; "broken" cannot be read.
class NamedFile final : public AdapterFile {
 public:
  explicit NamedFile(std::string directory) : directory_(std::move(directory)) {}
  size_t bytes() const override { return directory_.size(); }
  std::unique_ptr<Adapter> read() const override {
    if (directory_ == "broken") throw invalid_argument("the disk is gone");
    return std::make_unique<EmptyAdapter>();
  }

 private:
  std::string directory_;
};

// A runner that only keeps adapters.
class KeepingRunner final : public ModelRunner, public AdapterSlots {
 public:
  KeepingRunner() : ModelRunner({.vocab_size = kStubVocab, .hidden_size = 1, .adapters = this}) {}

  std::vector<CacheGroup> cache_groups(const StepLimits&) const override { return {}; }
  size_t free_cache_memory() override { return 1; }
  std::byte* allocate_cache(const CacheShare&) override { return nullptr; }
  void move_pages(const std::vector<PageMove>&) override {}
  void launch(const StepInput&) override {}
  StepOutput collect() override { return {}; }
  std::unique_ptr<AdapterFile> open_adapter(const std::string& directory) const override {
    return std::make_unique<NamedFile>(directory);
  }
  void set_adapter(int slot, std::unique_ptr<Adapter>) override {
    if (has_no_room) throw Error(ErrorCode::kUnavailable, "the device is full");
    slots.push_back(slot);
  }
  void drop_adapter(int slot) override { slots.erase(std::find(slots.begin(), slots.end(), slot)); }

  std::vector<int> slots;
  bool has_no_room = false;
};

// A pool whose step thread is the test's.
class Harness {
 public:
  explicit Harness(size_t limit)
      : pool_(runner, limit, [this](Submission&& ready) { record(std::move(ready)); }, [this] { record({}); }) {}

  AdapterPool& pool() { return pool_; }

  void submit(RequestId id, const std::string& name) {
    Submission submission;
    submission.request.id = id;
    submission.request.adapter = pool_.find(name);
    pool_.fetch(std::move(submission));
  }

  // Settles whenever the pool asks for it, until the request is delivered.
  Submission await(RequestId id) {
    std::unique_lock lock(mu_);
    while (true) {
      if (const auto found = ready_.find(id); found != ready_.end()) {
        Submission submission = std::move(found->second);
        ready_.erase(found);
        lock.unlock();
        pool_.finish_loads();
        return submission;
      }
      changed_.wait(lock, [this] { return has_news_; });
      has_news_ = false;
      lock.unlock();
      pool_.finish_loads();
      lock.lock();
    }
  }

  bool is_delivered(RequestId id) {
    const std::lock_guard lock(mu_);
    return ready_.contains(id);
  }

  KeepingRunner runner;

 private:
  void record(std::optional<Submission> ready) {
    const std::lock_guard lock(mu_);
    if (ready) ready_.emplace(ready->request.id, std::move(*ready));
    has_news_ = true;
    changed_.notify_all();
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::map<RequestId, Submission> ready_;  // guarded by mu_
  bool has_news_ = false;                  // guarded by mu_
  AdapterPool pool_;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(a_request_is_delivered_when_its_adapter_is_in_memory) {
  Harness harness(10);
  harness.pool().add("a", "aaaa", "");
  harness.submit(1, "a");
  const Submission first = harness.await(1);
  CHECK(!first.failure);
  CHECK(harness.runner.slots == std::vector<int>{first.request.adapter->slot});
  harness.submit(2, "a");
  CHECK(harness.is_delivered(2));  // at once
}

TEST(the_least_recently_used_adapter_that_nobody_uses_leaves) {
  Harness harness(10);
  for (const char* name : {"a", "b", "c"}) harness.pool().add(name, "xxxx", "");
  harness.submit(1, "a");
  Submission kept = harness.await(1);
  harness.submit(2, "b");
  harness.await(2);
  const int slot = kept.request.adapter->slot;
  harness.submit(3, "c");  // b leaves, although a was asked for before it
  const Submission third = harness.await(3);
  CHECK(harness.runner.slots == (std::vector<int>{slot, third.request.adapter->slot}));
}

TEST(where_all_are_in_use_requests_wait_and_get_their_turn) {
  Harness harness(4);
  harness.pool().add("a", "aaaa", "");
  harness.pool().add("b", "bbbb", "");
  harness.submit(1, "a");
  {
    const Submission user = harness.await(1);
    harness.submit(2, "b");
    // As soon as b waits for room, requests for a wait behind it.
    for (bool is_short = false; !is_short;) {
      Request next;
      next.adapter = harness.pool().find("a");
      is_short = !harness.pool().pin(next);
    }
    CHECK(!harness.is_delivered(2));
    harness.submit(3, "a");
  }
  CHECK(!harness.await(2).failure);
  CHECK(!harness.await(3).failure);
}

TEST(an_adapter_that_is_removed_stays_for_those_who_use_it) {
  Harness harness(10);
  harness.pool().add("a", "aaaa", "");
  harness.submit(1, "a");
  {
    const Submission user = harness.await(1);
    harness.pool().remove("a");
    harness.pool().finish_loads();
    CHECK_EQUAL(harness.runner.slots.size(), 1u);
    CHECK(message_of([&] { harness.pool().find("a"); }).find("there is no adapter a") != std::string::npos);
    harness.pool().add("a", "aa", "");  // the name is free
  }
  harness.pool().finish_loads();
  CHECK(harness.runner.slots.empty());
}

TEST(an_adapter_that_cannot_be_read_or_placed_fails_its_requests_alone) {
  Harness harness(10);
  harness.pool().add("broken", "broken", "");
  harness.pool().add("a", "aaaa", "");
  harness.submit(1, "broken");
  const Submission unread = harness.await(1);
  CHECK(unread.failure && std::string(unread.failure->what()) == "adapter broken: the disk is gone");
  harness.runner.has_no_room = true;
  harness.submit(2, "a");
  {
    const Submission unplaced = harness.await(2);
    CHECK(unplaced.request.adapter->failure.has_value());
  }
  harness.runner.has_no_room = false;
  harness.submit(3, "a");
  CHECK(!harness.await(3).request.adapter->failure);
}

TEST(names_that_are_taken_and_adapters_larger_than_the_limit_are_refused) {
  Harness harness(4);
  harness.pool().add("a", "aaaa", "a note");
  CHECK(message_of([&] { harness.pool().add("a", "aa", ""); }).find("already") != std::string::npos);
  CHECK(message_of([&] { harness.pool().add("b", "bbbbb", ""); }).find("max_adapter_mib") != std::string::npos);
  CHECK(!message_of([&] { harness.pool().remove("b"); }).empty());
  CHECK_EQUAL(harness.pool().list().size(), 1u);
  CHECK_EQUAL(harness.pool().list()[0].note, "a note");
}

}  // namespace turbomind::testing
