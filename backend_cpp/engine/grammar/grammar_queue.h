// Compiles requests' grammars alongside the step thread, which never waits for one.
//
// Requests of one format wait for one compilation. Few run at once, and one that takes long makes room: what is quick
// to compile passes it, however many slow ones are there. The latter are bounded too; one more is set back until there
// is room. Callers that are distinguished (GenerationParams::caller) take turns, and none has all places of slow ones.
// A format that failed for a reason of its own is refused at once when it comes again.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/grammar/grammar.h"
#include "engine/request.h"

namespace turbomind {

// A request on its way to the step thread.
struct Submission {
  Request request;
  std::shared_ptr<const Grammar> grammar;  // null: none
  std::optional<Error> failure;            // its grammar could not be compiled, or its adapter not be read
};

class GrammarQueue {
 public:
  static constexpr int kQuick = 2;  // compilations that run at once, without those that take long
  static constexpr int kSlow = 4;   // those that take long; of one caller one less
  static constexpr size_t kFailureBytes = size_t{4} << 20;  // of formats whose failure is remembered

  // `on_ready` gets each request back, on a thread of the queue's.
  GrammarQueue(std::unique_ptr<GrammarCompiler> compiler, std::function<void(Submission&&)> on_ready);
  // Requests not compiled yet are dropped.
  ~GrammarQueue();

  void add(Request&& request);
  // The request is not waited for any more; a compilation that nobody waits for ends.
  void cancel(RequestId id);

  // Of requests, but for compilations.
  struct Counts {
    int64_t requests = 0;
    int64_t compilations = 0;  // that succeeded
    int64_t hits = 0;          // whose grammar was there, or compiled for another
    int64_t failures = 0;      // whose grammar could not be compiled
  };
  Counts counts() const;

 private:
  struct Job {
    std::string format;
    std::string caller;  // in whose turn it runs
    std::vector<Request> requests;
    bool is_new = false;  // compiled for these requests
    bool is_slow = false;
    bool is_running = false;
  };
  using JobRef = std::shared_ptr<Job>;

  // Jobs that do not run, in turns of their callers.
  class Turns {
   public:
    void push(const std::string& caller, const JobRef& job);
    // The next one of a caller who may have one; its caller is then set. Null: there is none.
    JobRef pop(const std::function<bool(const std::string& caller)>& may_have);
    void erase(const JobRef& job);

   private:
    std::list<std::pair<std::string, std::deque<JobRef>>> callers_;  // the next one first
  };

  void run();
  JobRef next_job();  // mu_ is held; null: none may run now
  void run(const JobRef& job);
  bool may_be_slow(const std::string& caller) const;  // mu_ is held
  bool is_wanted(const Job& job);
  bool promote(Job& job);
  void finish(const JobRef& job, const std::shared_ptr<const Grammar>& grammar, const std::optional<Error>& failure);
  void count(const Job& job, size_t requests, bool is_compiled);   // mu_ is held
  void remember(const std::string& format, const Error& failure);  // mu_ is held

  std::unique_ptr<GrammarCompiler> compiler_;
  std::function<void(Submission&&)> on_ready_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  // All below is guarded by mu_.
  std::unordered_map<std::string, JobRef> jobs_;  // by format
  Turns quick_, slow_;
  int quick_running_ = 0, slow_running_ = 0;
  std::unordered_map<std::string, int> slow_of_;       // those of slow_running_ by caller
  std::list<std::pair<std::string, Error>> failures_;  // latest first
  std::unordered_map<std::string_view, decltype(failures_)::iterator> failure_of_;
  size_t failure_bytes_ = 0;
  Counts counts_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace turbomind
