// Disk cache: later engines answer as one that was never stopped, whatever became of files.
#include <filesystem>
#include <future>
#include <random>

#include "tests/disk/scratch.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

EngineConfig config_of(const std::string& directory, int blocks = 40) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  config.page_count = pages_of(blocks);
  config.disk = {directory, uint64_t{1} << 28, "a stub"};
  return config;
}

// Requests to an engine, and what each response must be.
class Life {
 public:
  explicit Life(const EngineConfig& config) : engine_(config, std::make_unique<StubRunner>(), letters()) {}

  void send(RequestId id, std::vector<int32_t> prompt, int count, const std::string& salt = "") {
    expected_[id] = expected_tokens(prompt, count);
    Request request = make_request(id, std::move(prompt), count, collector_.callback());
    request.params.cache_salt = salt;
    request.params.include_cache_report = true;
    engine_.submit(std::move(request));
  }
  // Waits for a response. Returns how much of its prompt was found.
  int wait(RequestId id) {
    const Collector::Response response = collector_.wait(id);
    CHECK(response.finish == FinishReason::kLength);
    CHECK(response.tokens == expected_.at(id));
    report_ = response.last.cache_report.value();
    CHECK_EQUAL(report_.device + report_.host + report_.disk, response.last.cached_token_len);
    CHECK_EQUAL(report_.snapshot, stubs_have_groups ? response.last.cached_token_len : 0);
    return response.last.cached_token_len;
  }
  // Of the response that was waited for last.
  const PrefixReport& report() const { return report_; }
  int serve(RequestId id, std::vector<int32_t> prompt, int count, const std::string& salt = "") {
    send(id, std::move(prompt), count, salt);
    return wait(id);
  }
  EngineStats stats() const { return engine_.stats(); }
  Engine& engine() { return engine_; }

 private:
  Collector collector_;
  std::map<RequestId, std::vector<int32_t>> expected_;
  PrefixReport report_;
  Engine engine_;
};

std::vector<int32_t> continued(std::vector<int32_t> prompt, int count, std::mt19937& random) {
  for (const int32_t token : expected_tokens(prompt, count)) prompt.push_back(token);
  for (const int32_t token : random_prompt(random, 7)) prompt.push_back(token);
  return prompt;
}

}  // namespace

ENGINE_TEST(an_engine_that_starts_again_finds_as_much_as_one_that_never_stopped) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const ScratchDirectory scratch;
    std::mt19937 random(seed);
    const std::vector<int32_t> first = random_prompt(random, 20 + static_cast<int>(random() % 30));
    const std::vector<int32_t> second = continued(first, 14, random);
    const std::vector<int32_t> third = continued(second, 9, random);
    EngineConfig without = config_of("");
    Life lasting(without);
    CHECK_EQUAL(lasting.serve(1, first, 14), 0);
    const int found = lasting.serve(2, second, 9);
    const int found_later = lasting.serve(3, third, 5);
    CHECK(found > 0 && found_later > found);
    const EngineConfig config = config_of(scratch.path());
    CHECK_EQUAL(Life(config).serve(1, first, 14), 0);
    CHECK_EQUAL(Life(config).serve(2, second, 9), found);
    Life last(config);
    CHECK_EQUAL(last.serve(3, third, 5), found_later);
    CHECK_EQUAL(last.report().disk, found_later);
    CHECK(last.stats().disk.read > 0);
    CHECK_EQUAL(last.stats().disk.damaged, 0);
  }
}

ENGINE_TEST(files_are_found_by_the_same_model_and_the_same_salt_alone) {
  const ScratchDirectory scratch;
  const std::vector<int32_t> prompt(40, 7);
  EngineConfig config = config_of(scratch.path());
  {
    Life life(config);
    CHECK_EQUAL(life.serve(1, prompt, 3, "ann"), 0);
  }
  CHECK_EQUAL(Life(config).serve(1, prompt, 3), 0);
  CHECK_EQUAL(Life(config).serve(1, prompt, 3, "bob"), 0);
  CHECK(Life(config).serve(1, prompt, 3, "ann") > 0);
  config.disk.fingerprint = "another";
  CHECK_EQUAL(Life(config).serve(1, prompt, 3, "ann"), 0);
}

ENGINE_TEST(what_has_no_room_in_memory_comes_back_from_files) {
  const ScratchDirectory scratch;
  std::mt19937 random(3);
  Life life(config_of(scratch.path(), 20));
  std::vector<std::vector<int32_t>> prompts;
  for (RequestId id = 1; id <= 12; ++id) {
    prompts.push_back(random_prompt(random, 50));
    CHECK_EQUAL(life.serve(id, prompts.back(), 2), 0);
  }
  CHECK(life.stats().evictions > 0);
  // Written when they were used last, or when they had to go.
  for (RequestId id = 1; id <= 12; ++id) CHECK_EQUAL(life.serve(100 + id, prompts[id - 1], 2), 48);
  CHECK(life.stats().disk.read > 0);
}

// In each history engines come and go over one directory, two of them at a time, with requests that begin alike, while
// somebody damages files, removes them or the directory, or leaves others there.
ENGINE_TEST(no_token_is_wrong_whatever_becomes_of_the_files) {
  const char* const expected = std::getenv("LMDEPLOY_DISK_HISTORIES");
  const unsigned histories = expected != nullptr ? static_cast<unsigned>(std::atoi(expected)) : 12;
  int64_t read = 0;
  int64_t damaged = 0;
  for (unsigned seed = 0; seed < histories; ++seed) {
    const ScratchDirectory scratch;
    const std::string directory = scratch.path() + "/cache";
    std::mt19937 random(seed);
    std::vector<std::vector<int32_t>> roots;
    for (int i = 0; i < 3; ++i) roots.push_back(random_prompt(random, 40));
    const auto prompt = [&] {
      const std::vector<int32_t>& root = roots[random() % roots.size()];
      std::vector<int32_t> tokens(root.begin(), root.begin() + 1 + static_cast<std::ptrdiff_t>(random() % root.size()));
      for (auto left = random() % 12; left > 0; --left) tokens.push_back(static_cast<int32_t>(random() % kStubVocab));
      return tokens;
    };
    const auto damage = [&] {
      const std::vector<std::filesystem::path> files = content_files(directory);
      std::error_code ignored;
      for (auto count = files.empty() ? 0 : random() % 6; count > 0; --count) {
        const std::filesystem::path& path = files[random() % files.size()];
        const auto size = std::filesystem::file_size(path, ignored);
        if (ignored || size == 0) continue;
        switch (random() % 4) {
          case 0:
            flip_bit(path, random() % (size * 8));
            break;
          case 1:
            std::filesystem::resize_file(path, random() % size, ignored);
            break;
          case 2:
            std::filesystem::remove(path, ignored);
            break;
          default:
            std::filesystem::rename(path, files[random() % files.size()], ignored);
            break;
        }
      }
      if (random() % 12 == 0) std::filesystem::remove_all(directory, ignored);
    };
    EngineConfig config = config_of(directory, 16 + static_cast<int>(random() % 30));
    if (random() % 3 == 0) config.host_page_count = pages_of(10);
    if (random() % 3 == 0) config.disk.bytes = 8000;
    for (int era = 0; era < 3; ++era) {
      Life one(config);
      std::optional<Life> other;
      if (random() % 2 == 0) other.emplace(config);
      std::vector<std::pair<Life*, RequestId>> sent;
      for (RequestId id = 1; id <= 8; ++id) {
        Life* life = other && random() % 2 == 0 ? &*other : &one;
        life->send(id, prompt(), 1 + static_cast<int>(random() % 10), random() % 4 == 0 ? "ann" : "");
        sent.emplace_back(life, id);
        if (random() % 3 == 0) damage();
        if (random() % 3 == 0) life->wait(id);
      }
      for (const auto& [life, id] : sent) life->wait(id);
      for (Life* life : {&one, other ? &*other : &one}) {
        read += life->stats().disk.read;
        damaged += life->stats().disk.damaged;
      }
    }
  }
  CHECK(read > 0);
  CHECK(damaged > 0);
}

ENGINE_TEST(what_is_dropped_is_computed_again) {
  const ScratchDirectory scratch;
  const std::vector<int32_t> prompt(40, 7);
  const EngineConfig config = config_of(scratch.path());
  {
    CHECK_EQUAL(Life(config).serve(1, prompt, 3), 0);
  }
  CHECK(!content_files(scratch.path()).empty());
  {
    Life life(config);
    CHECK(life.serve(1, prompt, 3) > 0);
    for (const auto action : {CacheControl::Action::kDropMemory, CacheControl::Action::kDropFiles}) {
      std::promise<bool> done;
      CacheControl control;
      control.action = action;
      control.on_done = [&](const CacheReport& report, const Error*) { done.set_value(report.has_files); };
      life.engine().control_cache(std::move(control));
      CHECK(done.get_future().get());
    }
  }
  CHECK(content_files(scratch.path()).empty());
  CHECK_EQUAL(Life(config).serve(1, prompt, 3), 0);
}

TEST(a_size_in_which_hardly_anything_fits_is_refused) {
  const ScratchDirectory scratch;
  EngineConfig config = config_of(scratch.path());
  config.disk.bytes = 16 * 32 - 1;
  CHECK(error_of([&] { Life life(config); }) == ErrorCode::kInvalidArgument);
  config.disk.bytes = 16 * 32;
  Life life(config);
}

}  // namespace turbomind::testing
