#include "device/device.h"

#include <algorithm>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/topology.h"
#include "device/cpu_operators.h"
#include "device/host_exchange.h"

namespace turbomind {

namespace {

// A prompt chunk of 256 tokens keeps the pause of running sequences short and costs a CPU no throughput; and a CPU
// shares its memory with everything else on the machine.
constexpr DeviceTraits kTraits{.batch_size = 64,
                               .step_tokens = 256,
                               .cache_limit = size_t{4} << 30,
                               .ranks_share_memory = true,
                               .takes_gguf_blocks = true,
                               .has_tiled_weights = true,
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
    return std::make_unique<CpuOperators>(std::max(threads, 1), RankLink{exchange_, rank});
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

// Its ranks share the machine's cores.
Device cpu_device() {
  return {"cpu", kTraits, [] { return 1; }, make, make_group, [] {}};
}

// The CPU is always there.
std::vector<Device>& devices() {
  static std::vector<Device> all = {cpu_device()};
  return all;
}

std::string joined(const std::vector<Device>& all) {
  std::string names = "auto";
  for (const Device& device : all) names += ", " + device.name;
  return names;
}

}  // namespace

bool add_device(const Device& device) {
  devices().push_back(device);
  return true;
}

const Device& find_device(const std::string& name) {
  const Device* found = nullptr;
  for (const Device& device : devices()) {
    const bool is_preferred = name == "auto" && device.count() > 0;
    if (is_preferred || device.name == name) found = &device;
  }
  if (found != nullptr) return *found;
  throw invalid_argument("device must be one that this build has (" + joined(devices()) + "), got " + name +
                         (name == "cuda" ? "; make build CUDA=1 adds it" : ""));
}

std::vector<std::string> available_devices() {
  std::vector<std::string> names;
  for (const Device& device : devices()) {
    if (device.count() > 0) names.push_back(device.name);
  }
  return names;
}

}  // namespace turbomind
