// Compilations side by side: fair, bounded, remembered.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "engine/grammar/grammar_queue.h"
#include "tests/engine_helpers.h"
#include "tests/stub_grammar.h"

namespace turbomind::testing {

namespace {

// Formats that begin with "slow" take long, until they are released; those that begin with "held" have a quick one's
// place until then; "broken" and "busy" fail.
class BlockingCompiler final : public GrammarCompiler {
 public:
  struct Log {
    std::mutex mu;
    std::condition_variable changed;
    std::map<std::string, int> begun;
    std::map<std::string, int> set_back;
    std::map<std::string, int> slow;  // that have a slow one's place
    std::vector<std::string> order;   // in which they were begun
    std::set<std::string> released;
    bool holds = true;

    template <class Condition>
    void wait(Condition&& holds_true) {
      std::unique_lock lock(mu);
      if (!changed.wait_for(lock, kDeadline, holds_true)) throw Failure("it did not come to that");
    }
    int count(const std::map<std::string, int>& of, const std::string& beginning) const {
      int sum = 0;
      for (const auto& [format, times] : of) sum += format.starts_with(beginning) ? times : 0;
      return sum;
    }
  };

  explicit BlockingCompiler(std::shared_ptr<Log> log) : log_(std::move(log)) {}
  void release() {
    const std::lock_guard lock(log_->mu);
    log_->holds = false;
    log_->changed.notify_all();
  }

  std::shared_ptr<const Grammar> compile(const std::string& format, const Waiting& waiting) override {
    {
      const std::lock_guard lock(log_->mu);
      ++log_->begun[format];
      log_->order.push_back(format);
      log_->changed.notify_all();
    }
    if (!format.starts_with("known")) waiting.on_begin();
    if (format == "broken") throw invalid_argument("it is broken");
    if (format == "busy") throw Error(ErrorCode::kUnavailable, "not now");
    const bool is_blocking = format.starts_with("held");
    if (!is_blocking && !format.starts_with("slow")) return std::make_shared<PatternGrammar>(8);
    if (!is_blocking && !waiting.may_take_long()) {
      const std::lock_guard lock(log_->mu);
      ++log_->set_back[format];
      log_->changed.notify_all();
      return nullptr;
    }
    std::unique_lock lock(log_->mu);
    if (!is_blocking) ++log_->slow[format];
    log_->changed.notify_all();
    while (log_->holds && !log_->released.contains(format)) {
      lock.unlock();
      if (!waiting.is_needed()) return nullptr;
      lock.lock();
      log_->changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    return std::make_shared<PatternGrammar>(8);
  }

 private:
  std::shared_ptr<Log> log_;
};

struct Queued {
  Queued() {
    auto owned = std::make_unique<BlockingCompiler>(log);
    compiler = owned.get();
    queue = std::make_unique<GrammarQueue>(std::move(owned), [this](Submission&& submission) {
      const std::lock_guard lock(log->mu);
      const RequestId id = submission.request.id;
      ready.emplace(id, std::move(submission));
      log->changed.notify_all();
    });
  }
  void add(RequestId id, const std::string& format, const std::string& caller = {}) {
    Request request = make_request(id, {1}, 4, {});
    request.params.response_format = format;
    request.params.caller = caller;
    queue->add(std::move(request));
  }
  const Submission& wait(RequestId id) {
    log->wait([&] { return ready.contains(id); });
    return ready.at(id);
  }

  std::shared_ptr<BlockingCompiler::Log> log = std::make_shared<BlockingCompiler::Log>();
  std::map<RequestId, Submission> ready;
  BlockingCompiler* compiler = nullptr;
  std::unique_ptr<GrammarQueue> queue;
};

}  // namespace

TEST(however_many_formats_take_long_quick_ones_are_compiled) {
  Queued queued;
  constexpr RequestId kHostile = 20;
  for (RequestId id = 1; id <= kHostile; ++id) queued.add(id, "slow " + std::to_string(id));
  // Those beyond what may take long are set back; none is lost.
  queued.log->wait([&] { return queued.log->count(queued.log->begun, "slow") == kHostile; });
  for (RequestId id = 101; id <= 110; ++id) queued.add(id, "quick " + std::to_string(id));
  for (RequestId id = 101; id <= 110; ++id) CHECK(queued.wait(id).grammar != nullptr);
  queued.compiler->release();
  for (RequestId id = 1; id <= kHostile; ++id) CHECK(queued.wait(id).grammar != nullptr);
}

TEST(callers_take_turns_however_many_formats_one_of_them_has) {
  Queued queued;
  for (const RequestId id : {1, 2}) queued.add(id, "held " + std::to_string(id), "many");
  queued.log->wait([&] { return queued.log->count(queued.log->begun, "held") == GrammarQueue::kQuick; });
  for (RequestId id = 11; id <= 20; ++id) queued.add(id, "many's " + std::to_string(id), "many");
  queued.add(21, "few's", "few");
  queued.add(22, "many's 20", "other");  // it waits for what another waits for too
  {
    const std::lock_guard lock(queued.log->mu);
    queued.log->released.insert("held 1");  // one place, so that there is an order
  }
  for (RequestId id = 11; id <= 22; ++id) CHECK(queued.wait(id).grammar != nullptr);
  const std::vector<std::string> order(queued.log->order.begin() + GrammarQueue::kQuick, queued.log->order.end());
  CHECK((std::vector(order.begin(), order.begin() + 4) ==
         std::vector<std::string>{"many's 11", "few's", "many's 20", "many's 12"}));
  CHECK_EQUAL(order.size(), size_t{11});
}

TEST(a_caller_of_many_slow_formats_leaves_a_place_to_others) {
  Queued queued;
  for (RequestId id = 1; id <= 8; ++id) queued.add(id, "slow many " + std::to_string(id), "many");
  constexpr int kTheirs = GrammarQueue::kSlow - 1;
  queued.log->wait([&] {
    return queued.log->count(queued.log->slow, "slow many") == kTheirs &&
           queued.log->count(queued.log->set_back, "slow many") == 8 - kTheirs;
  });
  queued.add(9, "slow few", "few");
  queued.log->wait([&] { return queued.log->slow["slow few"] == 1; });
  CHECK_EQUAL(queued.log->count(queued.log->slow, "slow many"), kTheirs);
  queued.compiler->release();
  for (RequestId id = 1; id <= 9; ++id) CHECK(queued.wait(id).grammar != nullptr);
}

TEST(requests_of_one_format_wait_for_one_compilation_and_are_counted_by_what_became_of_it) {
  Queued queued;
  for (RequestId id = 1; id <= 3; ++id) queued.add(id, "slow");
  queued.log->wait([&] { return queued.log->begun["slow"] == 1; });
  queued.compiler->release();
  for (RequestId id = 1; id <= 3; ++id) {
    CHECK(queued.wait(id).grammar == queued.wait(1).grammar);
    CHECK(queued.wait(id).request.grammar_seconds >= 0);
  }
  CHECK_EQUAL(queued.log->begun["slow"], 1);
  queued.add(4, "known");
  CHECK(queued.wait(4).grammar != nullptr);
  for (const RequestId id : {5, 6}) {
    queued.add(id, "broken");
    CHECK(queued.wait(id).failure.has_value());
  }
  const GrammarCounts counts = queued.queue->counts();
  CHECK_EQUAL(counts.requests, int64_t{6});
  CHECK_EQUAL(counts.compilations, int64_t{1});
  CHECK_EQUAL(counts.hits, int64_t{3});  // two alongside the first, and the one that was there
  CHECK_EQUAL(counts.failures, int64_t{2});
}

TEST(a_format_that_failed_for_its_own_reason_is_refused_at_once_and_one_that_came_at_a_bad_time_is_not) {
  Queued queued;
  for (const RequestId id : {1, 2, 3}) {
    queued.add(id, "broken");
    CHECK_EQUAL(std::string(queued.wait(id).failure->what()), std::string("it is broken"));
    queued.add(id + 10, "busy");
    CHECK(queued.wait(id + 10).failure->code() == ErrorCode::kUnavailable);
  }
  CHECK_EQUAL(queued.log->begun["broken"], 1);
  CHECK_EQUAL(queued.log->begun["busy"], 3);
}

TEST(a_compilation_that_nobody_waits_for_any_more_ends) {
  Queued queued;
  queued.add(1, "slow");
  queued.log->wait([&] { return queued.log->begun["slow"] == 1; });
  queued.queue->cancel(1);
  for (RequestId id = 2; id < 2 + GrammarQueue::kSlow; ++id) queued.add(id, "slow " + std::to_string(id));
  // They all have a place side by side, which the first has left.
  queued.log->wait([&] { return queued.log->count(queued.log->slow, "slow ") == GrammarQueue::kSlow; });
  queued.compiler->release();
  for (RequestId id = 2; id < 2 + GrammarQueue::kSlow; ++id) CHECK(queued.wait(id).grammar != nullptr);
  CHECK(!queued.ready.contains(1));
}

}  // namespace turbomind::testing
