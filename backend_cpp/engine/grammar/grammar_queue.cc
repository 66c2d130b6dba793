#include "engine/grammar/grammar_queue.h"

#include <algorithm>
#include <utility>

namespace turbomind {

GrammarQueue::GrammarQueue(std::unique_ptr<GrammarCompiler> compiler, std::function<void(Submission&&)> on_ready)
    : compiler_(std::move(compiler)), on_ready_(std::move(on_ready)) {
  for (int i = 0; i < kQuick + kSlow; ++i) threads_.emplace_back([this] { run(); });
}

GrammarQueue::~GrammarQueue() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void GrammarQueue::add(Request&& request) {
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mu_);
    const std::string& format = request.params.response_format;
    ++counts_.requests;
    request.submitted = Clock::now();
    if (const auto known = failures_.find(format); known != failures_.end()) {
      failure = known->second;
      ++counts_.failures;
    } else {
      JobRef& job = jobs_[format];
      if (!job) {
        job = std::make_shared<Job>();
        job->format = format;
      }
      if (!job->is_running) (job->is_slow ? slow_ : quick_).push(request.params.caller, job);
      job->requests.push_back(std::move(request));
    }
  }
  if (failure) {
    on_ready_({std::move(request), nullptr, failure});
  } else {
    changed_.notify_one();
  }
}

GrammarCounts GrammarQueue::counts() const {
  const std::lock_guard lock(mu_);
  return counts_;
}

void GrammarQueue::cancel(RequestId id) {
  const std::lock_guard lock(mu_);
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    const JobRef job = it->second;
    if (std::erase_if(job->requests, [id](const Request& request) { return request.id == id; }) == 0) continue;
    if (job->requests.empty() && !job->is_running) {
      quick_.erase(job);
      slow_.erase(job);
      jobs_.erase(it);
    }
    return;
  }
}

void GrammarQueue::Turns::push(const std::string& caller, const JobRef& job) {
  auto known = std::ranges::find(callers_, caller, &decltype(callers_)::value_type::first);
  if (known == callers_.end()) known = callers_.insert(known, {caller, {}});
  if (std::ranges::find(known->second, job) == known->second.end()) known->second.push_back(job);
}

GrammarQueue::JobRef GrammarQueue::Turns::pop(const std::function<bool(const std::string& caller)>& may_have) {
  const auto next = std::ranges::find_if(callers_, [&](const auto& entry) { return may_have(entry.first); });
  if (next == callers_.end()) return nullptr;
  JobRef job = next->second.front();
  job->caller = next->first;
  callers_.splice(callers_.end(), callers_, next);
  erase(job);
  return job;
}

// Several callers may wait for it.
void GrammarQueue::Turns::erase(const JobRef& job) {
  std::erase_if(callers_, [&](auto& entry) { return std::erase(entry.second, job) > 0 && entry.second.empty(); });
}

GrammarQueue::JobRef GrammarQueue::next_job() {
  JobRef job;
  if (quick_running_ < kQuick) job = quick_.pop([](const std::string&) { return true; });
  if (job) {
    ++quick_running_;
  } else {
    job = slow_.pop([this](const std::string& caller) { return may_be_slow(caller); });
    if (!job) return nullptr;
    ++slow_running_;
    ++slow_of_[job->caller];
  }
  job->is_running = true;
  return job;
}

bool GrammarQueue::may_be_slow(const std::string& caller) const {
  if (slow_running_ >= kSlow) return false;
  const auto known = slow_of_.find(caller);
  return caller.empty() || known == slow_of_.end() || known->second < kSlow - 1;
}

void GrammarQueue::run() {
  while (true) {
    JobRef job;
    {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [&] { return is_stopping_ || (job = next_job()) != nullptr; });
      if (is_stopping_) return;
    }
    run(job);
  }
}

void GrammarQueue::run(const JobRef& job) {
  std::shared_ptr<const Grammar> grammar;
  std::optional<Error> failure;
  try {
    grammar = compiler_->compile(
        job->format, {[&] { return is_needed(*job); }, [&] { return promote(*job); }, [&] { job->is_new = true; }});
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {
    failure = invalid_argument(std::string("response_format: ") + error.what());
  }
  finish(job, grammar, failure);
}

bool GrammarQueue::is_needed(const Job& job) {
  const std::lock_guard lock(mu_);
  return !is_stopping_ && !job.requests.empty();
}

// The job takes long: it leaves its place to quick ones, if there is one among the slow.
bool GrammarQueue::promote(Job& job) {
  {
    const std::lock_guard lock(mu_);
    if (is_stopping_ || job.requests.empty()) return false;
    if (job.is_slow) return true;
    if (!may_be_slow(job.caller)) return false;
    job.is_slow = true;
    --quick_running_;
    ++slow_running_;
    ++slow_of_[job.caller];
  }
  changed_.notify_one();
  return true;
}

void GrammarQueue::finish(const JobRef& job, const std::shared_ptr<const Grammar>& grammar,
                          const std::optional<Error>& failure) {
  std::vector<Request> requests;
  {
    const std::lock_guard lock(mu_);
    --(job->is_slow ? slow_running_ : quick_running_);
    if (job->is_slow && --slow_of_[job->caller] == 0) slow_of_.erase(job->caller);
    job->is_running = false;
    const bool is_set_back = !grammar && !failure && !job->requests.empty();
    if (is_set_back) {
      job->is_slow = true;
      for (const Request& request : job->requests) slow_.push(request.params.caller, job);
    } else {
      requests = std::move(job->requests);
      jobs_.erase(job->format);
      count(*job, requests.size(), grammar != nullptr);
      if (failure && failure->code() == ErrorCode::kInvalidArgument) remember(job->format, *failure);
    }
  }
  changed_.notify_all();
  const auto now = Clock::now();
  for (Request& request : requests) {
    request.grammar_seconds = static_cast<float>(seconds_between(request.submitted, now));
    on_ready_({std::move(request), grammar, failure});
  }
}

void GrammarQueue::count(const Job& job, size_t requests, bool is_compiled) {
  const auto number = static_cast<int64_t>(requests);
  if (!is_compiled) {
    counts_.failures += number;
    return;
  }
  counts_.compilations += job.is_new;
  counts_.hits += std::max<int64_t>(0, number - job.is_new);
}

void GrammarQueue::remember(const std::string& format, const Error& failure) {
  failure_bytes_ += format.size();
  if (failure_bytes_ > kFailureBytes) {
    failures_.clear();
    failure_bytes_ = format.size();
  }
  failures_.emplace(format, failure);
}

}  // namespace turbomind
