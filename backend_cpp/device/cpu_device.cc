#include "device/cpu_device.h"

#include <algorithm>

#include "base/cpu_share.h"
#include "base/topology.h"
#include "device/cpu_operators.h"
#include "device/host_exchange.h"
#include "device/rank_group.h"

namespace turbomind {

namespace {

// A prompt chunk of 256 tokens keeps the pause of running sequences short and costs a CPU no throughput; and a CPU
// shares its memory with everything else on the machine.
constexpr DeviceTraits kTraits{.batch_size = 64,
                               .step_tokens = 256,
                               .cache_limit = size_t{4} << 30,
                               .ranks_share_memory = true,
                               .takes_mins = true,
                               .drafts_pay = true,
                               .has_sparse_attention = true};

// Each rank has some of the cores, and where memory is divided among them (NUMA) those of its part of it: the thread
// that makes a rank's operators starts the others, and loads the weights.
class CpuRankGroup final : public RankGroup {
 public:
  CpuRankGroup(int ranks, int threads)
      : ranks_(ranks),
        threads_(threads > 0 ? threads : available_cpu_count()),
        nodes_(read_nodes("/sys/devices/system", allowed_processors())),
        exchange_(std::make_shared<HostExchange>(ranks)) {}

  int size() const override { return ranks_; }
  std::unique_ptr<Operators> make_operators(int rank) override {
    const int first = threads_ * rank / ranks_;
    const int threads = threads_ * (rank + 1) / ranks_ - first;
    keep_thread_on(processors_of_rank(nodes_, rank, ranks_));
    return std::make_unique<CpuOperators>(std::max(threads, 1), RankPlace{exchange_, rank});
  }
  void fail() noexcept override { exchange_->fail(); }

 private:
  int ranks_;
  int threads_;
  std::vector<std::vector<int>> nodes_;
  std::shared_ptr<HostExchange> exchange_;
};

std::unique_ptr<Operators> make(int threads) {
  return std::make_unique<CpuOperators>(threads);
}

std::unique_ptr<RankGroup> make_group(int ranks, int threads) {
  return std::make_unique<CpuRankGroup>(ranks, threads);
}

}  // namespace

Device cpu_device() {
  return {"cpu", kTraits, [] { return 1; }, make, make_group, [] {}};
}

}  // namespace turbomind
