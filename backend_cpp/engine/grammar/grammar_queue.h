// Compiles requests' grammars on its own threads; the step thread never waits for one.
//
// Requests with one format share one compilation. Few compilations run at once, and a slow one gives up its slot to
// fast ones, however many slow ones there are. Slow ones are limited too; further ones are requeued until there is
// room. Callers (GenerationParams::caller) take turns, and none may use all slots of slow ones. A format that failed is
// rejected immediately when it is requested again.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/grammar/grammar.h"
#include "engine/request.h"
#include "engine/stats.h"

namespace turbomind {

// A request for the step thread.
struct Submission {
  Request request;
  std::shared_ptr<const Grammar> grammar;  // null: none
  std::optional<Error> failure;            // of its grammar or its adapter
};

class GrammarQueue {
 public:
  static constexpr int kQuick = 2;                          // fast compilations that run at once
  static constexpr int kSlow = 4;                           // slow ones; one less per caller
  static constexpr size_t kFailureBytes = size_t{4} << 20;  // of cached formats that failed

  // `on_ready` receives each request, on a thread of the queue.
  GrammarQueue(std::unique_ptr<GrammarCompiler> compiler, std::function<void(Submission&&)> on_ready);
  // Drops waiting requests.
  ~GrammarQueue();

  void add(Request&& request);
  // Drops a request; a compilation without requests is cancelled.
  void cancel(RequestId id);

  GrammarCounts counts() const;

 private:
  struct Job {
    std::string format;
    std::string caller;  // whose turn it uses
    std::vector<Request> requests;
    bool is_new = false;  // compiled for these requests
    bool is_slow = false;
    bool is_running = false;
  };
  using JobRef = std::shared_ptr<Job>;

  // Waiting jobs, round robin by caller.
  class Turns {
   public:
    void push(const std::string& caller, const JobRef& job);
    // The next job of a caller for whom `may_have` is true, and sets its caller. Null: none.
    JobRef pop(const std::function<bool(const std::string& caller)>& may_have);
    void erase(const JobRef& job);

   private:
    std::list<std::pair<std::string, std::deque<JobRef>>> callers_;  // the next one first
  };

  void run();
  JobRef next_job();  // mu_ is held; null: none may run now
  void run(const JobRef& job);
  bool may_be_slow(const std::string& caller) const;  // mu_ is held
  bool is_needed(const Job& job);
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
  std::unordered_map<std::string, int> slow_of_;     // those of slow_running_ by caller
  std::unordered_map<std::string, Error> failures_;  // by format
  size_t failure_bytes_ = 0;
  GrammarCounts counts_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace turbomind
