// Tensor-parallel model runner, with a runner and a thread for each rank.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/thread_team.h"
#include "device/device.h"
#include "model/model_runner.h"

namespace turbomind {

// Every rank has a thread, in which its runner is made, runs and is destroyed. All get every step, and choose the
// same tokens where they choose any; what the first one returns is the step's output. Once a rank has thrown, every
// later step throws: the others may have stopped anywhere.
class ParallelRunner final : public ModelRunner, public AdapterSlots {
 public:
  using MakeRunner = std::function<std::unique_ptr<ModelRunner>(int rank)>;

  // Throws what the first rank to fail has thrown, as every call does.
  // `shares_memory`: the ranks' free memory is the same.
  ParallelRunner(std::shared_ptr<RankGroup> group, const MakeRunner& make, bool shares_memory);
  ~ParallelRunner() override;

  // Of one rank; all have the same.
  std::vector<CacheGroup> cache_groups(const StepLimits& limits) const override {
    return ranks_.front()->cache_groups(limits);
  }
  void prepare(const StepLimits& limits) override {
    run([&](ModelRunner& runner, int) { runner.prepare(limits); });
  }
  size_t free_cache_memory() override;
  int cache_variant(int prompt_len) const override { return ranks_.front()->cache_variant(prompt_len); }
  void keep_hidden(const std::vector<int>& layers) override {
    run([&](ModelRunner& runner, int) { runner.keep_hidden(layers); });
  }
  void lower_priority() override {
    run([](ModelRunner& runner, int) { runner.lower_priority(); });
  }
  // The pages of the first rank.
  std::byte* allocate_cache(const CacheShare& share) override;
  void move_pages(const std::vector<PageMove>& moves) override {
    run([&](ModelRunner& runner, int) { runner.move_pages(moves); });
  }
  size_t kept_page_bytes() const override { return ranks_.front()->kept_page_bytes() * ranks_.size(); }
  void read_pages(std::span<const int32_t> pages, std::byte* to) override;
  void write_pages(std::span<const int32_t> pages, const std::byte* from) override;
  void release_pages() override {
    run([](ModelRunner& runner, int) { runner.release_pages(); });
  }
  size_t weight_bytes() const override;
  // Ranks must do alike: what not all could prepare, none keeps.
  size_t prepare_decoding(const StepLimits& limits) override;
  bool reserve(const SamplingMetadata& choice) override;
  std::unique_ptr<AdapterFile> open_adapter(const std::string& directory) const override;
  void set_adapter(int slot, std::unique_ptr<Adapter> adapter) override;
  void drop_adapter(int slot) override {
    run([&](ModelRunner& runner, int) { runner.traits().adapters->drop_adapter(slot); });
  }
  void launch(const StepInput& input) override {
    run([&](ModelRunner& runner, int) { runner.launch(input); });
  }
  StepOutput collect() override;

 private:
  void run(const std::function<void(ModelRunner& runner, int rank)>& body);

  std::shared_ptr<RankGroup> group_;
  bool shares_memory_;
  std::vector<std::unique_ptr<ModelRunner>> ranks_;
  std::exception_ptr failure_;
  ThreadTeam threads_;
};

}  // namespace turbomind
