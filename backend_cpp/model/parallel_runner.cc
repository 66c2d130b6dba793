#include "model/parallel_runner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace turbomind {

namespace {

// An adapter's part for each rank.
struct RankAdapters final : Adapter {
  std::vector<std::unique_ptr<Adapter>> ranks;
};

struct RankAdapterFiles final : AdapterFile {
  std::vector<std::unique_ptr<AdapterFile>> ranks;

  size_t bytes() const override {
    size_t bytes = 0;
    for (const auto& file : ranks) bytes += file->bytes();
    return bytes;
  }
  std::unique_ptr<Adapter> read() const override {
    auto adapter = std::make_unique<RankAdapters>();
    for (const auto& file : ranks) adapter->ranks.push_back(file->read());
    return adapter;
  }
  std::string content() const override { return ranks.front()->content(); }
};

}  // namespace

ParallelRunner::ParallelRunner(std::shared_ptr<RankGroup> group, const MakeRunner& make, bool shares_memory)
    : ModelRunner({}),
      group_(std::move(group)),
      shares_memory_(shares_memory),
      ranks_(static_cast<size_t>(group_->size())),
      threads_(group_->size(), [this] { group_->fail(); }) {
  try {
    threads_.run([&](int rank) { ranks_[static_cast<size_t>(rank)] = make(rank); });
    traits_ = ranks_.front()->traits();
    if (traits_.adapters != nullptr) traits_.adapters = this;
  } catch (...) {
    threads_.run([this](int rank) { ranks_[static_cast<size_t>(rank)].reset(); });
    throw;
  }
}

ParallelRunner::~ParallelRunner() {
  threads_.run([this](int rank) { ranks_[static_cast<size_t>(rank)].reset(); });
}

size_t ParallelRunner::free_cache_memory() {
  std::vector<size_t> free(ranks_.size());
  run([&](ModelRunner& runner, int rank) { free[static_cast<size_t>(rank)] = runner.free_cache_memory(); });
  const size_t smallest = *std::min_element(free.begin(), free.end());
  return shares_memory_ ? smallest / ranks_.size() : smallest;
}

std::byte* ParallelRunner::allocate_cache(const CacheShare& share) {
  std::byte* pages = nullptr;
  run([&](ModelRunner& runner, int rank) {
    std::byte* rank_pages = runner.allocate_cache(share);
    if (rank == 0) pages = rank_pages;
  });
  return pages;
}

// A rank's part of all pages comes after that of the rank before it.
size_t ParallelRunner::weight_bytes() const {
  return std::accumulate(ranks_.begin(), ranks_.end(), size_t{0},
                         [](size_t sum, const auto& rank) { return sum + rank->weight_bytes(); });
}

void ParallelRunner::read_pages(std::span<const int32_t> pages, std::byte* to) {
  run([&](ModelRunner& runner, int rank) {
    runner.read_pages(pages, to + static_cast<size_t>(rank) * pages.size() * runner.kept_page_bytes());
  });
}

void ParallelRunner::write_pages(std::span<const int32_t> pages, const std::byte* from) {
  run([&](ModelRunner& runner, int rank) {
    runner.write_pages(pages, from + static_cast<size_t>(rank) * pages.size() * runner.kept_page_bytes());
  });
}

size_t ParallelRunner::prepare_decoding(const StepLimits& limits) {
  std::vector<size_t> prepared(ranks_.size());
  run([&](ModelRunner& runner, int rank) { prepared[static_cast<size_t>(rank)] = runner.prepare_decoding(limits); });
  const size_t smallest = *std::min_element(prepared.begin(), prepared.end());
  run([&](ModelRunner& runner, int) { runner.keep_prepared(smallest); });
  return smallest;
}

bool ParallelRunner::reserve(const SamplingMetadata& choice) {
  bool is_reserved = true;
  for (const auto& runner : ranks_) is_reserved = runner->reserve(choice) && is_reserved;
  return is_reserved;
}

std::unique_ptr<AdapterFile> ParallelRunner::open_adapter(const std::string& directory) const {
  auto files = std::make_unique<RankAdapterFiles>();
  for (const auto& runner : ranks_) files->ranks.push_back(runner->traits().adapters->open_adapter(directory));
  return files;
}

void ParallelRunner::set_adapter(int slot, std::unique_ptr<Adapter> adapter) {
  auto& parts = dynamic_cast<RankAdapters&>(*adapter).ranks;
  std::vector<std::optional<Error>> failures(ranks_.size());
  run([&](ModelRunner& runner, int rank) {
    const auto index = static_cast<size_t>(rank);
    try {
      runner.traits().adapters->set_adapter(slot, std::move(parts[index]));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      failures[index] = error;  // the rank continues
    }
  });
  const auto failed = std::find_if(failures.begin(), failures.end(), [](const auto& failure) { return !!failure; });
  if (failed == failures.end()) return;
  drop_adapter(slot);
  throw Error(**failed);
}

StepOutput ParallelRunner::collect() {
  StepOutput first;
  run([&](ModelRunner& runner, int rank) {
    const StepOutput output = runner.collect();
    if (rank == 0) first = output;
  });
  return first;
}

void ParallelRunner::run(const std::function<void(ModelRunner& runner, int rank)>& body) {
  if (failure_) std::rethrow_exception(failure_);
  try {
    threads_.run([&](int rank) { body(*ranks_[static_cast<size_t>(rank)], rank); });
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

}  // namespace turbomind
