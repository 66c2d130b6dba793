// Model runner with one worker process a rank; steps travel through shared memory (model/worker/step_channel.h).
//
// Where the workers say so, they choose the tokens, and the next step is on its way before those of this one are here.
//
// A worker that ends, or takes longer over a step than it may, is a fault of the device: the step throws, and restart()
// brings all workers back with an empty cache.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "model/model_runner.h"
#include "model/worker/step_channel.h"
#include "model/worker/worker_adapters.h"
#include "model/worker/worker_choices.h"
#include "model/worker/worker_process.h"

namespace turbomind {

struct WorkerOptions {
  // Starts a worker; its rank follows as the last argument.
  std::vector<std::string> command;
  int ranks = 1;
  int vocab_size = 0;
  int hidden_size = 0;
  int layers = 0;
  int max_tokens = 0;
  ImageTraits images = {};
  std::chrono::duration<double> step_timeout{600};
};

class WorkerRunner final : public ModelRunner, public AdapterSlots, public RunnerProcesses {
 public:
  // Starts the workers and waits until they have loaded the model. Throws Error with what they say.
  WorkerRunner(WorkerOptions options, const StepLimits& limits);
  ~WorkerRunner() override;

  std::vector<CacheGroup> cache_groups(const StepLimits& limits) const override;
  size_t free_cache_memory() override;
  std::byte* allocate_cache(const CacheShare& share) override;
  void move_pages(const std::vector<PageMove>& moves) override;
  bool reserve(const SamplingMetadata& choice) override {
    return traits_.samples_on_device && uses_only(choice, facts_.sampling) && choices_.reserve(choice);
  }
  void launch(const StepInput& input) override;
  StepOutput collect() override;

  std::unique_ptr<AdapterFile> open_adapter(const std::string& directory) const override;
  void set_adapter(int slot, std::unique_ptr<Adapter> adapter) override;
  void drop_adapter(int slot) override;

  void on_loss(std::function<void()> reported) override;
  bool is_lost() const override { return is_lost_; }
  void restart() override;

 private:
  // Model facts of the first rank.
  struct Facts {
    size_t token_bytes = 0;  // of a rank's cache, a token
    size_t free_memory = 0;  // 0: the host's counts
    int window = 0;
    int state_layers = 0;               // that keep a state of fixed size a sequence
    size_t state_bytes = 0;             // of each of them
    std::vector<std::string> sampling;  // fields that it chooses tokens by
    AdaptableLayers layers;
  };

  struct StepInFlight {
    uint32_t number;  // of its order
    int area;
    int choices;
  };

  void start();
  void order_cache();
  // The next order, of this kind; of steps and moves in the area that no step under way has.
  Order& new_order(OrderKind kind);
  void send_images(const StepInput& input, Order& order);
  void stop();
  void watch();
  // Until all ranks have done an order. Throws Error with what one of them says, or how it ended.
  void wait(uint32_t number, bool is_step = false);
  void order_adapter(OrderKind kind, int slot, const std::string& directory);
  void check(int rank, uint32_t number);
  std::string name_of(int rank) const;
  [[noreturn]] void lose(const std::string& reason);

  const WorkerOptions options_;
  const StepLimits limits_;
  const ChannelShape shape_;
  Facts facts_;
  CacheShare cache_;
  std::map<int, std::string> adapters_;  // directories, by slot

  std::unique_ptr<StepChannel> channel_;
  WorkerChoices choices_;
  std::deque<StepInFlight> steps_;  // that were given and not taken
  int area_ = 0;                    // of the next step
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::mutex mu_;
  std::function<void()> on_loss_;  // guarded by mu_
  std::atomic<bool> is_lost_{false};
  FileDescriptor end_of_watch_;  // an eventfd
  std::thread watcher_;          // reports a worker that ends while nobody waits for it
};

}  // namespace turbomind
