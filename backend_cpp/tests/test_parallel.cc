// Ranks: thread team, sums over ranks, the runner that drives them, and how a model is divided.
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/thread_team.h"
#include "device/device.h"
#include "device/host_exchange.h"
#include "model/parallel_runner.h"
#include "model/spec/shard.h"
#include "tests/check.h"
#include "tests/stub_runner.h"

namespace turbomind::testing {

namespace {

void do_nothing() {}

// Error of `body`; empty if it throws nothing.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

ModelSpec small_spec() {
  ModelSpec spec;
  spec.architecture = "Tiny";
  spec.num_layers = 1;
  spec.layer_mixers = {Mixer::kAttention};
  spec.layer_mlps = {true};
  spec.hidden_size = 64;
  spec.num_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.intermediate_size = 100;
  spec.attention.alibi_slopes = {1, 2, 3, 4, 5, 6, 7, 8};
  return spec;
}

// Runs steps through the exchange of its group, as a rank of a model does, and throws in one of them.
class SummingRunner final : public ModelRunner {
 public:
  SummingRunner(std::unique_ptr<Operators> ops, int rank, int failing_rank, int failing_step)
      : ModelRunner({.vocab_size = 1, .hidden_size = 1}),
        ops_(std::move(ops)),
        rank_(rank),
        failing_step_(rank == failing_rank ? failing_step : -1) {}

  std::vector<CacheGroup> cache_groups(const StepLimits&) const override { return {}; }
  size_t free_cache_memory() override { return static_cast<size_t>(1000 + rank_); }
  std::byte* allocate_cache(const CacheShare&) override { return nullptr; }
  void move_pages(const std::vector<PageMove>&) override {}
  void launch(const StepInput&) override {
    for (int half = 0; half < 4; ++half) {
      if (half == 2 && step_ == failing_step_) throw internal_error("rank " + std::to_string(rank_) + " broke");
      logit_ = static_cast<float>(rank_ + 1);
      ops_->all_reduce(&logit_, 1);
    }
    ++step_;
  }
  StepOutput collect() override { return {&logit_, nullptr, nullptr}; }

 private:
  std::unique_ptr<Operators> ops_;
  int rank_;
  int failing_step_;
  int step_ = 0;
  float logit_ = 0;
};

std::unique_ptr<ParallelRunner> summing_runner(int ranks, int failing_rank, int failing_step, bool shares_memory) {
  const std::shared_ptr<RankGroup> group = find_device("cpu").make_group(ranks, ranks);
  const auto make = [=](int rank) {
    return std::make_unique<SummingRunner>(group->make_operators(rank), rank, failing_rank, failing_step);
  };
  return std::make_unique<ParallelRunner>(group, make, shares_memory);
}

}  // namespace

TEST(a_team_runs_a_call_on_each_member_and_always_on_the_same_thread) {
  ThreadTeam team(3, do_nothing);
  std::vector<std::thread::id> first(3);
  std::vector<std::thread::id> second(3);
  team.run([&](int member) { first[static_cast<size_t>(member)] = std::this_thread::get_id(); });
  team.run([&](int member) { second[static_cast<size_t>(member)] = std::this_thread::get_id(); });
  CHECK(first == second);
  CHECK_EQUAL(std::set<std::thread::id>(first.begin(), first.end()).size(), size_t{3});
}

TEST(a_team_throws_what_failed_first_and_goes_on) {
  std::atomic<int> failures{0};
  ThreadTeam team(2, [&] { ++failures; });
  const std::string error = error_of([&] {
    team.run([&](int member) {
      if (member == 0) throw internal_error("first");
      while (failures == 0) std::this_thread::yield();
      throw internal_error("second");
    });
  });
  CHECK_EQUAL(error, std::string("first"));
  CHECK_EQUAL(failures.load(), 2);
  std::atomic<int> sum{0};
  team.run([&](int member) { sum += member; });
  CHECK_EQUAL(sum.load(), 1);
}

TEST(sums_over_ranks_are_added_in_their_order_and_equal_on_all_of_them) {
  constexpr int kRanks = 4;
  HostExchange exchange(kRanks);
  ThreadTeam team(kRanks, do_nothing);
  std::mt19937 random(1);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{577}, size_t{5000}}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<std::vector<float>> parts(kRanks, std::vector<float>(count));
      for (auto& part : parts) {
        for (float& value : part)
          value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 40) - 20);
      }
      std::vector<float> expected = parts[0];
      for (int rank = 1; rank < kRanks; ++rank) {
        for (size_t i = 0; i < count; ++i) expected[i] += parts[static_cast<size_t>(rank)][i];
      }
      team.run([&](int rank) { exchange.all_reduce(rank, parts[static_cast<size_t>(rank)].data(), count); });
      for (const auto& part : parts) CHECK(part == expected);
    }
  }
}

TEST(parts_of_ranks_are_put_together_on_all_of_them) {
  constexpr int kRanks = 3;
  HostExchange exchange(kRanks);
  ThreadTeam team(kRanks, do_nothing);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{577}}) {
    std::vector<float> expected(kRanks * count);
    std::iota(expected.begin(), expected.end(), 1.0f);
    std::vector<std::vector<float>> gathered(kRanks, std::vector<float>(expected.size()));
    for (size_t rank = 0; rank < kRanks; ++rank) {
      std::copy_n(&expected[rank * count], count, &gathered[rank][rank * count]);
    }
    team.run([&](int rank) { exchange.all_gather(rank, gathered[static_cast<size_t>(rank)].data(), count); });
    for (const auto& part : gathered) CHECK(part == expected);
  }
}

TEST(sums_one_after_another_do_not_mix) {
  constexpr int kRanks = 3;
  HostExchange exchange(kRanks);
  ThreadTeam team(kRanks, do_nothing);
  std::atomic<int> wrong{0};
  team.run([&](int rank) {
    std::vector<float> data(64);
    for (int round = 0; round < 3000; ++round) {
      data.assign(data.size(), static_cast<float>(rank * round));
      exchange.all_reduce(rank, data.data(), data.size());
      for (const float value : data) wrong += value != static_cast<float>(3 * round);
    }
  });
  CHECK_EQUAL(wrong.load(), 0);
}

TEST(a_failed_rank_ends_the_waiting_of_the_others) {
  for (int round = 0; round < 50; ++round) {
    HostExchange exchange(3);
    ThreadTeam team(3, [&] { exchange.fail(); });
    const std::string error = error_of([&] {
      team.run([&](int rank) {
        if (rank == 1) throw internal_error("out of memory");
        float value = 1;
        exchange.all_reduce(rank, &value, 1);
      });
    });
    CHECK_EQUAL(error, std::string("out of memory"));
    float value = 1;
    CHECK(contains(error_of([&] { exchange.all_reduce(0, &value, 1); }), "another rank of the model has failed"));
  }
}

TEST(a_parallel_runner_returns_the_first_ranks_output) {
  const auto runner = summing_runner(3, -1, -1, true);
  for (int step = 0; step < 100; ++step) CHECK_EQUAL(*runner->forward({}).logits, 6.0f);
}

TEST(a_rank_that_throws_in_the_middle_of_a_step_fails_the_runner_for_good) {
  for (int failing_rank = 0; failing_rank < 3; ++failing_rank) {
    const auto runner = summing_runner(3, failing_rank, 2, true);
    const std::string expected = "rank " + std::to_string(failing_rank) + " broke";
    runner->forward({});
    runner->forward({});
    CHECK_EQUAL(error_of([&] { runner->forward({}); }), expected);
    CHECK_EQUAL(error_of([&] { runner->forward({}); }), expected);
  }
}

TEST(a_rank_that_cannot_be_made_is_the_error_of_the_runner) {
  const std::shared_ptr<RankGroup> group = find_device("cpu").make_group(2, 2);
  const auto make = [](int rank) -> std::unique_ptr<ModelRunner> {
    if (rank == 1) throw invalid_argument("no weights");
    return std::make_unique<StubRunner>();
  };
  CHECK_EQUAL(error_of([&] { ParallelRunner(group, make, true); }), std::string("no weights"));
}

TEST(each_rank_has_the_part_of_a_page_that_all_have_room_for) {
  CHECK_EQUAL(summing_runner(3, -1, -1, true)->free_cache_memory(), size_t{333});
  CHECK_EQUAL(summing_runner(3, -1, -1, false)->free_cache_memory(), size_t{1000});
}

TEST(ranks_hold_every_channel_once_and_whole_groups) {
  for (const int group : {1, 32}) {
    int next = 0;
    for (int rank = 0; rank < 3; ++rank) {
      ModelSpec spec = small_spec();
      spec.num_heads = spec.num_kv_heads = 6;
      spec.attention.alibi_slopes.clear();
      const Shard shard = Shard::of(spec, rank, 3, group);
      const Slice::Range range = shard.channels.at(0).ranges().at(0);
      CHECK_EQUAL(range.begin, next);
      CHECK_EQUAL(range.begin % std::max(8, group), 0);
      CHECK_EQUAL(shard.spec.intermediate_size, range.end - range.begin);
      next = range.end;
    }
    CHECK_EQUAL(next, 100);
  }
}

TEST(ranks_hold_every_token_of_the_output_layer_once) {
  int next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    ModelSpec spec = small_spec();
    spec.vocab_size = 1003;
    const Shard shard = Shard::of(spec, rank, 4, 1);
    const Slice::Range range = shard.vocab.ranges().at(0);
    CHECK_EQUAL(range.begin, next);
    CHECK_EQUAL(range.begin, rank * shard.vocab_part);
    next = range.end;
  }
  CHECK_EQUAL(next, 1003);
}

TEST(neighbouring_ranks_share_a_key_head_where_there_are_too_few) {
  for (int rank = 0; rank < 4; ++rank) {
    const Shard shard = Shard::of(small_spec(), rank, 4, 1);
    CHECK_EQUAL(shard.spec.num_heads, 2);
    CHECK_EQUAL(shard.spec.num_kv_heads, 1);
    CHECK_EQUAL(shard.attention.at(0).kv.ranges().at(0).begin, rank / 2);
    CHECK(shard.spec.attention.alibi_slopes == std::vector<float>({2.0f * rank + 1, 2.0f * rank + 2}));
  }
}

TEST(what_cannot_be_divided_is_refused_by_name) {
  const auto rejection = [](const ModelSpec& spec, int count, int group) {
    return error_of([&] { Shard::of(spec, 0, count, group); });
  };
  ModelSpec spec = small_spec();
  CHECK(contains(rejection(spec, 3, 1), "num_heads 8 is no multiple"));
  CHECK(contains(rejection(spec, 3, 1), "num_kv_heads 2 is neither a multiple nor a divisor"));
  CHECK(contains(rejection(spec, 8, 32), "intermediate_size 100 has fewer groups of 32"));
  CHECK(contains(rejection(spec, 8, 32), "attention.o would be cut inside a group of 32"));
  spec.attention.qk_norm = QkNorm::kProjection;
  CHECK(contains(rejection(spec, 2, 1), "attention.qk_norm"));
  CHECK_EQUAL(rejection(spec, 1, 1), std::string());
}

}  // namespace turbomind::testing
