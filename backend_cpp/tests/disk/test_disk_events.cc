// Events of files: who reads them knows which blocks the directory holds.
#include <filesystem>
#include <set>

#include "engine/engine_core.h"
#include "tests/disk/scratch.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

using Hashes = std::set<uint64_t>;

// Reconstructs from events which files there are.
class FileReader final : public CacheEventSink {
 public:
  State state() const override { return state_; }
  void push(std::vector<CacheEvent>&& events) override {
    state_ = State::kFollows;
    for (const CacheEvent& event : events) {
      if (event.kind == CacheEventKind::kCleared) hashes.clear();
      if (event.tier != CacheTier::kDisk) continue;
      for (const uint64_t hash : event.hashes) {
        const bool is_new = event.kind == CacheEventKind::kStored;
        CHECK(is_new ? hashes.insert(hash).second : hashes.erase(hash) == 1);
      }
    }
  }
  void set_state(State state) { state_ = state; }

  Hashes hashes;

 private:
  State state_ = State::kFollows;
};

// An engine without its threads, on a directory.
struct Server {
  explicit Server(EngineConfig with) : config(std::move(with)) {
    config.plan = plan_of_stub(config);
    runner.allocate_cache({config.plan, {config.page_count, config.host_page_count}, 0});
    core.emplace(config, runner, stub_space().tokens, &reader);
  }
  void step() {
    core->step();
    core->announce();
  }
  void serve(std::vector<int32_t> prompt, int count, const std::string& salt) {
    Request request = make_request(++last, std::move(prompt), count, [](Output&&) {});
    request.params.cache_salt = salt;
    core->add({std::move(request), nullptr, std::nullopt});
    while (core->has_work()) step();
    core->take_outputs();
  }
  void write_out() {
    core->finish_files();
    core->announce();
  }

  EngineConfig config;
  StubRunner runner;
  FileReader reader;
  std::optional<EngineCore> core;
  RequestId last = 0;
};

EngineConfig config_of(const std::string& directory) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  config.disk = {directory, uint64_t{1} << 28, "a stub", std::chrono::milliseconds(10)};
  return config;
}

// Names of the files of all blocks that were computed, from the description of the format, with their hashes in events.
class Contents {
 public:
  void add(std::vector<int32_t> tokens, int count, const std::string& salt) {
    for (const int32_t token : expected_tokens(tokens, count)) tokens.push_back(token);
    Sha256 digest = sha256("a stub" + std::string(as_bytes(sha256(as_bytes(sha256(salt))))) + "0");
    uint64_t hash = 0;
    for (size_t begin = 0; begin + 4 <= tokens.size(); begin += 4) {
      const auto bytes_of = [](const auto& value) {
        return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
      };
      std::string content = bytes_of(uint32_t{4});
      std::string hashed = bytes_of(hash);
      for (size_t i = begin; i < begin + 4; ++i) {
        content += bytes_of(tokens[i]);
        hashed += bytes_of(tokens[i]);
      }
      if (begin == 0 && !salt.empty()) hashed += "[\"" + salt + "\"]";
      hash = 0xcbf29ce484222325u;
      for (const char c : hashed) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
      const std::string before(as_bytes(digest));
      hashes_[hex(sha256(before + content + std::string(1, '\0'))) + ".kv"] = hash;
      digest = sha256(before + content);
    }
  }
  // Hashes of the files of a directory.
  Hashes in(const std::string& directory) const {
    Hashes found;
    for (const std::filesystem::path& path : content_files(directory)) {
      const auto hash = hashes_.find(path.filename().string());
      if (hash != hashes_.end()) found.insert(hash->second);
      CHECK(hash != hashes_.end() || stubs_have_groups);  // which have files of their own
    }
    return found;
  }

 private:
  std::map<std::string, uint64_t> hashes_;
};

}  // namespace

ENGINE_TEST(who_reads_the_events_of_two_engines_knows_what_their_directory_holds) {
  size_t max_hashes = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    const ScratchDirectory scratch;
    std::mt19937 random(seed);
    EngineConfig config = config_of(scratch.path());
    if (seed % 2 == 0) config.disk.bytes = 20'000;
    std::array<Server, 2> servers = {Server(config), Server(config)};
    Contents contents;
    std::vector<std::vector<int32_t>> roots;
    for (int i = 0; i < 3; ++i) roots.push_back(random_prompt(random, 40));
    for (int round = 0; round < 60; ++round) {
      Server& server = servers[random() % 2];
      const std::vector<int32_t>& root = roots[random() % roots.size()];
      std::vector<int32_t> prompt(root.begin(), root.begin() + 1 + static_cast<std::ptrdiff_t>(random() % root.size()));
      for (auto left = random() % 12; left > 0; --left) prompt.push_back(static_cast<int32_t>(random() % kStubVocab));
      const int count = 1 + static_cast<int>(random() % 8);
      const std::string salt = random() % 4 == 0 ? "ann" : "";
      contents.add(prompt, count, salt);
      server.serve(std::move(prompt), count, salt);
      if (random() % 30 == 0) {
        CacheControl control;
        control.action = CacheControl::Action::kDropFiles;
        control.on_done = [](const CacheReport&, const Error*) {};
        server.core->control(control);
      }
      if (random() % 20 == 0) server.reader.set_state(CacheEventSink::State::kLost);
      if (random() % 20 == 0) server.reader.set_state(CacheEventSink::State::kNeedsSnapshot);
      if (round % 20 != 19) continue;
      for (Server& server : servers) server.write_out();
      for (Server& server : servers) server.reader.set_state(CacheEventSink::State::kNeedsSnapshot);
      const Hashes there = contents.in(scratch.path());
      max_hashes = std::max(max_hashes, there.size());
      // Each knows what it has written and looked for, and notices what the other has removed.
      wait_until([&] {
        Hashes known;
        for (Server& server : servers) {
          server.core->announce();
          known.insert(server.reader.hashes.begin(), server.reader.hashes.end());
        }
        return known == there;
      });
    }
    for (Server& server : servers) {
      server.core->end_all(nullptr);
      server.core->clear_cache();
      server.core->announce();
      CHECK(std::ranges::includes(contents.in(scratch.path()), server.reader.hashes));
    }
  }
  CHECK(max_hashes > 50);
}

ENGINE_TEST(files_of_an_earlier_engine_are_reported) {
  const ScratchDirectory scratch;
  std::mt19937 random(2);
  Contents contents;
  const std::vector<int32_t> one = random_prompt(random, 30);
  const std::vector<int32_t> other = random_prompt(random, 30);
  {
    Server server(config_of(scratch.path()));
    server.serve(one, 3, "");
    server.write_out();
    contents.add(one, 3, "");
    const Hashes unsalted = contents.in(scratch.path());
    CHECK(unsalted.size() >= 7);
    server.serve(other, 3, "ann");
    server.write_out();
    contents.add(other, 3, "ann");
    // Those without a salt at once, others when a request looks for them.
    Server later(config_of(scratch.path()));
    const auto& known = later.reader.hashes;
    wait_until([&] {
      later.core->announce();
      return known == unsalted;
    });
    later.serve(other, 3, "ann");
    later.write_out();
    CHECK(known == contents.in(scratch.path()));
  }
  Server later(config_of(scratch.path()));
  const auto& known = later.reader.hashes;
  // One that is gone is missed when somebody looks for it.
  std::filesystem::remove_all(scratch.path());
  later.serve(other, 3, "ann");
  later.write_out();
  wait_until([&] {
    later.core->announce();
    return known == contents.in(scratch.path());
  });
  CHECK(!known.empty());
}

}  // namespace turbomind::testing
