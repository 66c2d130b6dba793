#include "engine/grammar_queue.h"

namespace turbomind {

GrammarQueue::GrammarQueue(std::unique_ptr<GrammarCompiler> compiler, std::function<void(Submission&&)> on_ready)
    : compiler_(std::move(compiler)), on_ready_(std::move(on_ready)), thread_([this] { run(); }) {}

GrammarQueue::~GrammarQueue() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void GrammarQueue::add(Request&& request) {
  {
    const std::lock_guard lock(mu_);
    requests_.push_back(std::move(request));
  }
  changed_.notify_one();
}

void GrammarQueue::run() {
  while (true) {
    Submission submission;
    {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [this] { return is_stopping_ || !requests_.empty(); });
      if (is_stopping_) return;
      submission.request = std::move(requests_.front());
      requests_.pop_front();
    }
    try {
      submission.grammar = compiler_->compile(submission.request.params.response_format);
    } catch (const Error& error) {
      submission.failure = error;
    } catch (const std::exception& error) {
      submission.failure = invalid_argument(std::string("response_format: ") + error.what());
    }
    on_ready_(std::move(submission));
  }
}

}  // namespace turbomind
