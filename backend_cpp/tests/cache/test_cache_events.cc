// Events of the block cache: who reads them knows what the cache holds.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "engine/cache/prefix_hits.h"
#include "engine/engine_core.h"
#include "engine/events/event_publisher.h"
#include "tests/cache_plans.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

// All tokens up to a block's end, and where it is.
using Location = std::pair<std::vector<int32_t>, CacheTier>;

// Knows of the cache what it is given.
class Reader final : public CacheEventSink {
 public:
  explicit Reader(int block_len) : block_len_(static_cast<size_t>(block_len)) {}

  State state() const override { return state_; }
  void push(std::vector<CacheEvent>&& events) override {
    CHECK(state_ != State::kLost);
    CHECK(!events.empty());
    CHECK(state_ == State::kFollows || events.front().kind == CacheEventKind::kCleared);
    state_ = State::kFollows;
    for (const CacheEvent& event : events) take(event);
  }
  void set_state(State state) { state_ = state; }

  std::set<Location> locations() const {
    std::set<Location> all;
    for (const auto& [hash, tiers] : tiers_) {
      for (const CacheTier tier : tiers) all.emplace(prefixes_.at(hash), tier);
    }
    return all;
  }

 private:
  void take(const CacheEvent& event) {
    if (event.kind == CacheEventKind::kCleared) {
      tiers_.clear();
      prefixes_.clear();
    }
    for (size_t i = 0; i < event.hashes.size(); ++i) {
      const uint64_t hash = event.hashes[i];
      if (event.kind == CacheEventKind::kRemoved) {
        CHECK_EQUAL(tiers_[hash].erase(event.tier), size_t{1});
        if (tiers_[hash].empty()) tiers_.erase(hash);
        continue;
      }
      std::vector<int32_t> prefix;
      const std::optional<uint64_t> parent = i == 0 ? event.parent : event.hashes[i - 1];
      if (parent) {
        CHECK(tiers_.contains(*parent));
        prefix = prefixes_.at(*parent);
      }
      const auto begin = event.tokens.begin() + static_cast<std::ptrdiff_t>(i * block_len_);
      prefix.insert(prefix.end(), begin, begin + static_cast<std::ptrdiff_t>(block_len_));
      check_owner(prefix.front(), prefix.size() == block_len_, event.lora_name, event.extra_keys[i]);
      CHECK(tiers_[hash].insert(event.tier).second);
      prefixes_[hash] = std::move(prefix);
    }
  }
  // Prompts begin with the number of their adapter, and above ten with a salt.
  static void check_owner(int32_t first, bool is_first_block, const std::string& lora_name, const std::string& extra) {
    const std::string adapter = first % 10 == 0 ? "" : "adapter " + std::to_string(first % 10);
    CHECK_EQUAL(lora_name, adapter);
    std::string keys = adapter.empty() ? "" : "\"" + adapter + "\"";
    if (first >= 10 && is_first_block) keys += (keys.empty() ? "" : ",") + std::string("\"salt\"");
    CHECK_EQUAL(extra, keys.empty() ? keys : "[" + keys + "]");
  }

  size_t block_len_;
  State state_ = State::kFollows;
  std::map<uint64_t, std::set<CacheTier>> tiers_;
  std::map<uint64_t, std::vector<int32_t>> prefixes_;
};

// Contents that requests can find in a cache.
std::set<Location> locations_of(const BlockCache& cache) {
  const PrefixTree& tree = cache.contents().tree();
  std::map<NodeId, std::vector<int32_t>> prefixes;
  std::set<Location> locations;
  for (const NodeId node : cache.stored_nodes()) {
    const NodeId parent = tree.parent(node);
    if (!tree.is_root(parent) && !prefixes.contains(parent)) continue;  // nothing leads there
    std::vector<int32_t> prefix = prefixes[parent];
    prefix.insert(prefix.end(), tree.tokens(node).begin(), tree.tokens(node).end());
    const int32_t block = cache.stored(node, observed_group(cache.plan()));
    locations.emplace(prefix, cache.pool().is_of_host(block) ? CacheTier::kHost : CacheTier::kDevice);
    prefixes[node] = std::move(prefix);
  }
  return locations;
}

Request request_of(RequestId id, std::mt19937& random, uint64_t loading) {
  const auto adapter = static_cast<int32_t>(random() % 3);
  const bool has_salt = random() % 4 == 0;
  // Prompts branch from few others.
  std::mt19937 common(random() % 12);
  std::vector<int32_t> prompt = random_prompt(common, 4 + static_cast<int>(random() % 36));
  const std::vector<int32_t> suffix = random_prompt(random, static_cast<int>(random() % 12));
  prompt.insert(prompt.end(), suffix.begin(), suffix.end());
  prompt.front() = adapter + (has_salt ? 10 : 0);
  Request request = make_request(id, std::move(prompt), 1 + static_cast<int>(random() % 6), [](Output&&) {});
  if (has_salt) request.params.cache_salt = "salt";
  if (adapter > 0) {
    LoadedAdapter loaded;
    loaded.name = "adapter " + std::to_string(adapter);
    loaded.id = loading * 3 + static_cast<uint64_t>(adapter);
    request.adapter = std::make_shared<const LoadedAdapter>(loaded);
  }
  return request;
}

}  // namespace

ENGINE_TEST(who_reads_the_events_of_ten_thousand_requests_knows_what_the_cache_holds) {
  constexpr RequestId kRequests = 10'000;
  for (const int host_blocks : {0, 20}) {
    EngineConfig config = small_config();
    config.enable_prefix_caching = true;
    config.block_len = 4;
    config.page_count = pages_of(40);
    config.host_page_count = pages_of(host_blocks);
    config.session_len = 80;
    StubRunner runner;
    config.plan = plan_of_stub(config);
    runner.allocate_cache({config.plan, {config.page_count, config.host_page_count}, 0});
    Reader reader(config.block_len);
    EngineCore core(config, runner, stub_space().tokens, &reader);
    std::mt19937 random(7);
    size_t max_locations = 0;
    for (RequestId id = 1; id <= kRequests; ++id) {
      // Adapters are loaded again under their names, now and then; the reader loses track, and asks again.
      core.add({request_of(id, random, id / 2500), nullptr, std::nullopt});
      if (random() % 50 == 0) core.cancel(id - random() % 4);
      if (id % 997 == 0) reader.set_state(CacheEventSink::State::kLost);
      if (id % 997 == 40) reader.set_state(CacheEventSink::State::kNeedsSnapshot);
      for (auto steps = random() % 3; steps > 0 && core.has_work(); --steps) {
        core.step();
        core.announce();
      }
      while (core.stats().waiting > 20) {
        core.step();
        core.announce();
      }
      core.take_outputs();
      if (id % 100 == 99 && reader.state() == CacheEventSink::State::kFollows) {
        core.announce();
        const std::set<Location> locations = locations_of(core.cache());
        max_locations = std::max(max_locations, locations.size());
        CHECK(reader.locations() == locations);
      }
    }
    const EngineStats stats = core.stats();
    CHECK(max_locations > 30);
    CHECK(stats.evictions > 1000);
    CHECK((host_blocks > 0) == (stats.swapped_in > 100));
    reader.set_state(CacheEventSink::State::kNeedsSnapshot);
    core.announce();
    CHECK(reader.locations() == locations_of(core.cache()));
    core.end_all(nullptr);
    core.clear_cache();
    core.announce();
    CHECK(reader.locations().empty());
  }
}

TEST(what_follows_a_block_that_is_gone_is_not_reported_of) {
  BlockCache cache(small_plan(2), {3});
  Reader reader(2);
  CacheAnnouncer announcer(2, reader);
  cache.observe(announcer);
  const std::vector<int32_t> tokens = {0, 1, 2, 3, 4, 5};
  std::vector<int32_t> blocks;
  for (int index = 0; index < 2; ++index) {
    blocks.push_back(cache.allocate());
    publish(cache, {0, tokens}, index, blocks);
  }
  announcer.end_step(cache);
  CHECK_EQUAL(reader.locations().size(), size_t{2});
  cache.release(blocks[0], Keep::kContent);  // before a window
  blocks.push_back(cache.allocate());
  std::vector<int32_t> other = {cache.allocate()};  // takes it
  publish(cache, {0, tokens}, 2, blocks);
  announcer.end_step(cache);
  CHECK(reader.locations().empty());
  // The same content again is reported; those that nothing led to are found again, but are not reported.
  publish(cache, {0, tokens}, 0, other);
  cache.release(blocks);
  announcer.end_step(cache);
  CHECK_EQUAL(reader.locations().size(), size_t{1});
  const std::set<Location> found = locations_of(cache);
  CHECK(std::ranges::includes(found, reader.locations()));
  for (int i = 0; i < 2; ++i) cache.allocate();
  announcer.end_step(cache);
  CHECK_EQUAL(reader.locations().size(), size_t{1});
}

namespace {

// A publisher that is a line of shell, in its own folder.
struct Published {
  explicit Published(const std::string& script, size_t max_bytes = EventPublisher::kMaxBytes)
      : publisher({"/bin/sh", "-c", "cd " + folder.string() + "; " + script}, 1, max_bytes) {
    publisher.notify([this] { is_woken = true; });
  }
  ~Published() { std::filesystem::remove_all(folder); }

  void push(int32_t token) {
    CacheEvent event;
    event.kind = CacheEventKind::kStored;
    event.hashes = {1};
    event.tokens = {token};
    event.extra_keys = {""};
    publisher.push({event});
  }
  std::string text() const {
    std::ifstream file(folder / "lines");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path folder = [] {
    std::string name = (std::filesystem::temp_directory_path() / "events-XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr);
    return std::filesystem::path(name);
  }();
  std::atomic<bool> is_woken{false};
  EventPublisher publisher;
};

bool has_text(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(a_publisher_gets_a_line_a_step) {
  Published one("echo '{}' >&3; cat <&3 > lines");
  for (int token = 0; token < 3; ++token) one.push(token);
  CHECK_EQUAL(one.publisher.counts().event_batches, int64_t{3});
  wait_until([&] { return std::ranges::count(one.text(), '\n') == 3; });
  CHECK(has_text(one.text(), "\"sequence\":2"));
  CHECK(has_text(one.text(), R"("events":[{"type":"BlockStored","block_hashes":[1],"parent_block_hash":null,)"
                             R"("token_ids":[2],"block_size":1,"lora_id":null,"medium":"GPU","lora_name":null}]})"));
}

TEST(a_publisher_that_ends_is_started_again_and_everything_is_asked_for) {
  // Ends after its first line.
  Published one("echo '{}' >&3; read line <&3; echo \"$line\" >> lines");
  one.push(11);
  wait_until([&] { return has_text(one.text(), "[11]"); });
  // Until the end of the process is seen, what is pushed is lost.
  wait_until([&] {
    if (one.publisher.state() == CacheEventSink::State::kFollows) one.push(12);
    return one.publisher.state() == CacheEventSink::State::kNeedsSnapshot;
  });
  wait_until([&] { return one.is_woken.load(); });
  CHECK_EQUAL(one.publisher.counts().event_losses, int64_t{1});
  one.push(13);
  wait_until([&] { return has_text(one.text(), "[13]"); });
}

TEST(a_publisher_that_takes_nothing_keeps_nobody_waiting) {
  Published one("echo '{}' >&3; exec sleep 600", 4000);
  constexpr int64_t kPushed = 20'000;  // more than a socket holds
  for (int64_t i = 0; i < kPushed; ++i) one.push(1);
  const EventCounts counts = one.publisher.counts();
  CHECK(counts.event_losses >= 1);
  CHECK(counts.event_batches < kPushed);
}

TEST(a_publisher_that_cannot_publish_says_why) {
  const auto error_of_publisher = [](const std::string& script) {
    try {
      const Published one(script);
      return std::string("nothing");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  CHECK_EQUAL(error_of_publisher("echo '{\"error\": \"the port is in use\"}' >&3"),
              std::string("kv_events_config: the port is in use"));
  CHECK(has_text(error_of_publisher("exit 3"), "kv_events_config: the publisher"));
}

}  // namespace turbomind::testing
