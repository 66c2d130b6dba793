#include "engine/output_queue.h"

namespace turbomind {

OutputQueue::~OutputQueue() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

void OutputQueue::push(std::vector<Delivery>&& deliveries) {
  if (deliveries.empty()) return;
  {
    const std::lock_guard lock(mu_);
    for (Delivery& delivery : deliveries) queue_.push_back(std::move(delivery));
  }
  ready_.notify_one();
}

void OutputQueue::run() {
  std::vector<Delivery> batch;
  while (true) {
    {
      std::unique_lock lock(mu_);
      ready_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (auto& [to, output] : batch) (*to)(std::move(output));
    batch.clear();
  }
}

}  // namespace turbomind
