// Requests with rows in place of token embeddings. To the stub such a row is a token: whatever it says, the response is
// that to the tokens it stands for.

#include <cmath>
#include <thread>

#include "tests/disk/scratch.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

constexpr int32_t kPlaceholder = 1;

// Rows of the numbers `shown`, from token `begin` on. The digest is made of them.
EmbeddingRange image(int begin, const std::vector<int32_t>& shown) {
  EmbeddingRange range;
  range.begin = begin;
  range.count = static_cast<int>(shown.size());
  EmbeddingRows rows{DType::kFloat32, 1, {}};
  for (const int32_t token : shown) {
    const auto value = static_cast<float>(token);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    rows.data.insert(rows.data.end(), bytes, bytes + sizeof(value));
    range.digest[0] = static_cast<uint8_t>(range.digest[0] * 31 + token);
  }
  range.rows = std::make_shared<const EmbeddingRows>(std::move(rows));
  return range;
}

// `before` and `after` around an image; and what the stub takes it for.
struct Shown {
  Shown(const std::vector<int32_t>& before, const std::vector<int32_t>& rows, const std::vector<int32_t>& after)
      : range(image(static_cast<int>(before.size()), rows)), prompt(before), meant(before) {
    prompt.insert(prompt.end(), rows.size(), kPlaceholder);
    meant.insert(meant.end(), rows.begin(), rows.end());
    prompt.insert(prompt.end(), after.begin(), after.end());
    meant.insert(meant.end(), after.begin(), after.end());
  }

  Request request(RequestId id, int count, const OutputCallback& callback) const {
    Request request = make_request(id, prompt, count, callback);
    request.embeddings = {range};
    return request;
  }

  EmbeddingRange range;
  std::vector<int32_t> prompt;
  std::vector<int32_t> meant;
};

std::unique_ptr<StubRunner> stub_with(ImageTraits traits) {
  auto runner = std::make_unique<StubRunner>();
  runner->traits_.images = traits;
  return runner;
}

}  // namespace

ENGINE_TEST(rows_take_the_place_of_tokens_in_chunks_and_alongside_text) {
  EngineConfig config = small_config();
  config.max_step_tokens = 11;  // cuts images
  config.max_batch_size = 3;
  Collector collector;
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> meant;
  for (RequestId id = 1; id <= 12; ++id) {
    const Shown shown(random_prompt(random, static_cast<int>(id % 5)), random_prompt(random, 1 + static_cast<int>(id)),
                      random_prompt(random, static_cast<int>(id % 3)));
    meant.push_back(id % 3 == 0 ? shown.prompt : shown.meant);
    Request request = shown.request(id, 9, collector.callback());
    if (id % 3 == 0) request.embeddings.clear();
    request.params.n = 1 + static_cast<int>(id % 2);
    engine.submit(std::move(request));
  }
  for (RequestId id = 1; id <= 12; ++id) {
    for (int index = 0; index < 1 + static_cast<int>(id % 2); ++index) {
      CHECK(collector.wait(id, index).tokens == expected_tokens(meant[id - 1], 9));
    }
  }
}

PLAIN_ENGINE_TEST(an_image_whose_tokens_see_each_other_comes_in_one_step) {
  EngineConfig config = small_config();
  config.max_step_tokens = 13;
  config.max_batch_size = 4;
  config.page_count = pages_of(24);  // some are preempted
  config.session_len = 64;
  config.enable_prefix_caching = true;
  Collector collector;
  Engine engine(config, stub_with({.width = 1, .needs_whole = true}), letters());
  std::mt19937 random(8);
  std::vector<std::vector<int32_t>> meant;
  for (RequestId id = 1; id <= 24; ++id) {
    // Every other prompt begins as the one before, so that blocks end within an image that is not cached whole.
    if (id % 2 == 1) random.seed(id);
    std::vector<int32_t> before = random_prompt(random, static_cast<int>(id / 2 % 7));
    const std::vector<int32_t> rows = random_prompt(random, 9);
    if (id % 2 == 0) random.seed(id);
    const Shown shown(std::move(before), rows, random_prompt(random, static_cast<int>(id % 9)));
    meant.push_back(shown.meant);
    engine.submit(shown.request(id, 15, collector.callback()));
  }
  for (RequestId id = 1; id <= 24; ++id) CHECK(collector.wait(id).tokens == expected_tokens(meant[id - 1], 15));
  CHECK(engine.stats().prefix_cache_hits > 0);
  Request large = make_request(99, std::vector<int32_t>(12, 2), 2, collector.callback());
  large.embeddings = {image(1, std::vector<int32_t>(10, 3))};  // alongside 4 decoding sequences there are 9 rows
  CHECK(error_of([&] { engine.submit(std::move(large)); }) == ErrorCode::kInvalidArgument);
}

PLAIN_ENGINE_TEST(blocks_are_shared_only_by_images_on_the_same_grid) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  Collector collector;
  Engine engine(config, stub_with({.width = 1, .has_grid = true}), letters());
  const Shown shown({1, 2, 3, 4}, {7, 8, 9, 10, 11, 12, 13, 14}, {5, 6});
  RequestId id = 0;
  const auto matched = [&](ImageGrid grid) {
    const int64_t before = engine.stats().prefix_cache_hits;
    Request request = shown.request(++id, 4, collector.callback());
    request.embeddings[0].grid = grid;
    engine.submit(std::move(request));
    CHECK(collector.wait(id).tokens == expected_tokens(shown.meant, 4));
    return engine.stats().prefix_cache_hits - before;
  };
  CHECK_EQUAL(matched({1, 2, 4}), 0);
  CHECK_EQUAL(matched({1, 2, 4}), 12);
  CHECK_EQUAL(matched({1, 4, 2}), 4);
  CHECK_EQUAL(matched({2, 2, 2, 1.5f}), 4);
  CHECK_EQUAL(matched({2, 2, 2, 1.5f}), 12);
  CHECK_EQUAL(matched({2, 2, 2, 2.0f}), 4);
  CHECK_EQUAL(matched({}), 4);
}

ENGINE_TEST(grids_that_do_not_fit_are_refused) {
  Collector collector;
  Engine with_grid(small_config(), stub_with({.width = 1, .has_grid = true}), letters());
  Engine without(small_config(), std::make_unique<StubRunner>(), letters());
  const auto rejected = [&](Engine& engine, ImageGrid grid) {
    Request request = make_request(1, std::vector<int32_t>(8, 2), 2, {});
    request.embeddings = {image(1, {3, 4, 5, 6})};
    request.embeddings[0].grid = grid;
    return error_of([&] { engine.submit(std::move(request)); }) == ErrorCode::kInvalidArgument;
  };
  CHECK(rejected(without, {1, 2, 2}));
  CHECK(rejected(with_grid, {1, 2, 3}));
  CHECK(rejected(with_grid, {0, 2, 2}));
  CHECK(rejected(with_grid, {-1, -2, 2}));
  CHECK(rejected(with_grid, {1 << 30, 1 << 30, 4}));
  CHECK(rejected(with_grid, {0, 0, 4}));
  CHECK(rejected(with_grid, {2, 1, 2, -1.0f}));
  CHECK(rejected(with_grid, {2, 1, 2, 1001.0f}));
  CHECK(rejected(with_grid, {2, 1, 2, std::nanf("")}));
}

PLAIN_ENGINE_TEST(a_preempted_image_is_computed_again) {
  EngineConfig config = small_config();
  config.page_count = pages_of(14);
  config.session_len = 56;
  Collector collector;
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  std::mt19937 random(5);
  std::vector<std::vector<int32_t>> meant;
  for (RequestId id = 1; id <= 6; ++id) {
    const Shown shown(random_prompt(random, 2), random_prompt(random, 10), random_prompt(random, 3));
    meant.push_back(shown.meant);
    engine.submit(shown.request(id, 30, collector.callback()));
  }
  for (RequestId id = 1; id <= 6; ++id) CHECK(collector.wait(id).tokens == expected_tokens(meant[id - 1], 30));
  CHECK(engine.stats().preemptions > 0);
}

PLAIN_ENGINE_TEST(blocks_are_shared_only_by_the_same_image_in_the_same_place) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  Collector collector;
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  const std::vector<int32_t> rows{7, 8, 9, 10, 11, 12, 13, 14};
  std::vector<int32_t> others = rows;
  others[3] = 40;
  const Shown first({1, 2, 3, 4}, rows, {5, 6});
  const Shown other_image({1, 2, 3, 4}, others, {5, 6});
  const Shown other_position({1, 2, 3}, rows, {kPlaceholder, 5, 6});
  RequestId id = 0;
  const auto matched = [&](const Shown& shown) {
    const int64_t before = engine.stats().prefix_cache_hits;
    engine.submit(shown.request(++id, 4, collector.callback()));
    CHECK(collector.wait(id).tokens == expected_tokens(shown.meant, 4));
    return engine.stats().prefix_cache_hits - before;
  };
  CHECK_EQUAL(matched(first), 0);
  CHECK_EQUAL(matched(first), 12);
  CHECK_EQUAL(matched(other_image), 4);
  CHECK_EQUAL(matched(other_position), 0);
  engine.submit(make_request(++id, first.prompt, 4, collector.callback()));  // placeholders and no image
  CHECK(collector.wait(id).tokens == expected_tokens(first.prompt, 4));
}

ENGINE_TEST(a_session_keeps_its_images_and_a_rollback_cuts_them) {
  EngineConfig config = small_config();
  config.page_count = pages_of(8);
  config.session_len = 32;
  Collector collector;
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  const Shown shown({1, 2}, {30, 31, 32, 33, 34, 35}, {3});
  Request first = shown.request(1, 3, collector.callback());
  first.session = SessionParams{7, true, false, false, -1};
  engine.submit(std::move(first));
  std::vector<int32_t> history = shown.meant;
  for (const int32_t token : collector.wait(1).tokens) history.push_back(token);
  engine.submit(make_request(2, std::vector<int32_t>(25, 4), 6, collector.callback()));  // takes the session's blocks
  collector.wait(2);
  history.push_back(9);
  CHECK(turn(engine, collector, 3, 7, false, {9}, 3) == expected_tokens(history, 3));
  Request back = shown.request(4, 3, collector.callback());
  back.session = SessionParams{7, false, false, false, 5};  // in the middle of the image
  engine.submit(std::move(back));
  std::vector<int32_t> cut(shown.meant.begin(), shown.meant.begin() + 5);
  cut.insert(cut.end(), shown.meant.begin(), shown.meant.end());
  CHECK(collector.wait(4).tokens == expected_tokens(cut, 3));
}

ENGINE_TEST(images_in_files_are_found_by_what_they_show) {
  const ScratchDirectory scratch;
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  config.disk = {scratch.path(), uint64_t{1} << 28, "a stub"};
  const auto found = [&](const Shown& shown) {
    Engine engine(config, std::make_unique<StubRunner>(), letters());
    Collector collector;
    engine.submit(shown.request(1, 3, collector.callback()));
    const Collector::Response response = collector.wait(1);
    CHECK(response.tokens == expected_tokens(shown.meant, 3));
    return response.last.cached_token_len;
  };
  const std::vector<int32_t> after = {8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  const Shown one({5, 6, 7}, {3, 4, 5, 6, 7}, after);
  CHECK_EQUAL(found(one), 0);
  CHECK(found(one) >= 8);
  CHECK_EQUAL(found(Shown({5, 6, 7}, {3, 4, 5, 7, 6}, after)), 0);
}

ENGINE_TEST(embeddings_that_do_not_fit_the_prompt_are_refused) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  const auto rejected = [&](std::vector<EmbeddingRange> ranges) {
    Request request = make_request(1, std::vector<int32_t>(8, 2), 2, collector.callback());
    request.embeddings = std::move(ranges);
    return error_of([&] { engine.submit(std::move(request)); }) == ErrorCode::kInvalidArgument;
  };
  CHECK(rejected({image(-1, {3})}));
  CHECK(rejected({image(7, {3, 4})}));
  CHECK(rejected({image(4, {3}), image(2, {3})}));
  CHECK(rejected({image(2, {3, 4}), image(3, {3})}));
  CHECK(rejected({image(2, {})}));
  EmbeddingRange wider = image(2, {3, 4});
  wider.rows = std::make_shared<const EmbeddingRows>(EmbeddingRows{DType::kFloat32, 2, wider.rows->data});
  CHECK(rejected({wider}));
  EmbeddingRange none = image(2, {3});
  none.rows = nullptr;
  CHECK(rejected({none}));
}

ENGINE_TEST(what_embeddings_take_is_bounded_and_comes_back) {
  EngineConfig config = small_config();
  config.embedding_bytes = 6 * sizeof(float);
  Collector collector;
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  const Shown small({1}, {2, 3, 4, 5}, {6});
  const Shown large({1}, std::vector<int32_t>(7, 2), {6});
  CHECK(error_of([&] { engine.submit(large.request(1, 2, {})); }) == ErrorCode::kUnavailable);
  for (RequestId id = 2; id < 5; ++id) {
    Request request = small.request(id, 2, collector.callback());
    if (id == 2) request.session = SessionParams{7, true, true, false, -1};
    // Rows of the last request come back once nothing of it is left, soon after its last output.
    const auto deadline = Clock::now() + kDeadline;
    for (bool taken = false; !taken && Clock::now() < deadline;) {
      try {
        engine.submit(request);
        taken = true;
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kUnavailable);
        std::this_thread::yield();
      }
    }
    CHECK(collector.wait(id).tokens == expected_tokens(small.meant, 2));
  }
}

ENGINE_TEST(idle_sessions_with_more_images_than_half_the_bound_go_oldest_first) {
  EngineConfig config = small_config();
  config.embedding_bytes = 20 * sizeof(float);
  Collector collector;
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  const Shown shown({1}, {2, 3, 4, 5}, {6});
  for (RequestId id = 1; id <= 4; ++id) {
    Request request = shown.request(id, 2, collector.callback());
    request.session = SessionParams{id, true, false, false, -1};
    engine.submit(std::move(request));
    collector.wait(id);
  }
  CHECK(failure_of(collector, engine, session_request(11, 1, false, {3}, 2, collector.callback())) ==
        ErrorCode::kUnknownSession);
  std::vector<int32_t> history = shown.meant;
  for (const int32_t token : expected_tokens(shown.meant, 2)) history.push_back(token);
  history.push_back(3);
  CHECK(turn(engine, collector, 12, 4, false, {3}, 2) == expected_tokens(history, 2));
}

}  // namespace turbomind::testing
