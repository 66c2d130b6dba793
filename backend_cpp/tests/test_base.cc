// JSON, thread pool.
#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "tests/check.h"

namespace turbomind::testing {

TEST(json_reads_what_it_should_and_refuses_the_rest) {
  const Json json = Json::parse(R"({"a": [1, -2.5e3, true, null], "s": "q\"\u00e9\ud83d\ude42\n"})");
  CHECK_EQUAL(json.at("a").as_array().size(), 4u);
  CHECK_EQUAL(json.at("a").as_array()[1].as_double(), -2500.0);
  CHECK_EQUAL(json.at("s").as_string(), "q\"\xC3\xA9\xF0\x9F\x99\x82\n");
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1,}", "1 2", "nan", "\"\\x\"", "tru", "{1:2}", "1e999"}) {
    bool refused = false;
    try {
      Json::parse(bad);
    } catch (const Error&) {
      refused = true;
    }
    CHECK(refused);
  }
  bool refused = false;
  try {
    Json::parse(std::string(100000, '['));
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(a_parallel_loop_runs_every_chunk_once) {
  ThreadPool pool(4);
  for (int round = 0; round < 3000; ++round) {
    const int chunks = round % 37;
    std::vector<std::atomic<int>> hits(static_cast<size_t>(chunks));
    pool.parallel_for(chunks, [&](int chunk) { ++hits[static_cast<size_t>(chunk)]; });
    for (const auto& count : hits) CHECK_EQUAL(count.load(), 1);
    if (round % 500 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long enough for workers to sleep
  }
}

}  // namespace turbomind::testing
