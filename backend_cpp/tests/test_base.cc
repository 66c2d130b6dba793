// JSON, thread pool, a map that forgets, secrets.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

#include "base/constant_time.h"
#include "base/error.h"
#include "base/json.h"
#include "base/recent_map.h"
#include "base/thread_pool.h"
#include "tests/check.h"

namespace turbomind::testing {

TEST(json_reads_what_it_should_and_refuses_the_rest) {
  const Json json = Json::parse(R"({"a": [1, -2.5e3, true, null], "s": "q\"\u00e9\ud83d\ude42\n"})");
  CHECK_EQUAL(json.at("a").as_array().size(), 4u);
  CHECK_EQUAL(json.at("a").as_array()[1].as_double(), -2500.0);
  CHECK_EQUAL(json.at("s").as_string(), "q\"\xC3\xA9\xF0\x9F\x99\x82\n");
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1,}", "1 2", "nan", "\"\\x\"", "tru", "{1:2}", "1e999"}) {
    bool rejected = false;
    try {
      Json::parse(bad);
    } catch (const Error&) {
      rejected = true;
    }
    CHECK(rejected);
  }
  bool rejected = false;
  try {
    Json::parse(std::string(100000, '['));
  } catch (const Error&) {
    rejected = true;
  }
  CHECK(rejected);
}

TEST(secrets_are_equal_only_in_all_of_their_characters) {
  const std::string secret("0123456789abcdef\0z", 18);
  CHECK(equal_in_constant_time(secret, std::string(secret)));
  CHECK(equal_in_constant_time("", ""));
  for (size_t i = 0; i < secret.size(); ++i) {
    std::string other = secret;
    other[i] = static_cast<char>(other[i] ^ '\x80');
    CHECK(!equal_in_constant_time(secret, other));
    CHECK(!equal_in_constant_time(secret, secret.substr(0, i)));
  }
  CHECK(!equal_in_constant_time(secret, secret + "a"));
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

TEST(a_thread_pool_lets_other_threads_go_first_where_it_should) {
  constexpr int kThreads = 3;
  std::array<int, kThreads> niceness{};
  const int normal = getpriority(PRIO_PROCESS, 0);
  std::thread caller([&] {
    ThreadPool pool(kThreads);
    pool.lower_priority();
    std::barrier all(kThreads);
    pool.parallel_for(kThreads, [&](int chunk) {
      all.arrive_and_wait();  // so that each thread has one
      niceness[static_cast<size_t>(chunk)] = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
    });
  });
  caller.join();
  for (const int nice : niceness) CHECK_EQUAL(nice, std::max(normal, 3));
  CHECK_EQUAL(getpriority(PRIO_PROCESS, 0), normal);
}

TEST(a_recent_map_forgets_what_was_not_asked_for_the_longest) {
  RecentMap<int, int> map(3);
  int made = 0;
  const auto lookup = [&](int key) { return map.get(key, [&] { return ++made, 10 * key; }); };
  for (const int key : {1, 2, 3, 1}) CHECK_EQUAL(lookup(key), 10 * key);
  CHECK_EQUAL(made, 3);
  lookup(4);  // in place of 2
  CHECK_EQUAL(map.size(), 3u);
  for (const int key : {1, 3, 4}) lookup(key);
  CHECK_EQUAL(made, 4);
  lookup(2);
  CHECK_EQUAL(made, 5);
  bool has_thrown = false;
  try {
    map.get(9, []() -> int { throw internal_error("cannot be made"); });
  } catch (const Error&) {
    has_thrown = true;
  }
  CHECK(has_thrown);
  CHECK_EQUAL(map.size(), 3u);
  lookup(2);
  CHECK_EQUAL(made, 5);
}

}  // namespace turbomind::testing
