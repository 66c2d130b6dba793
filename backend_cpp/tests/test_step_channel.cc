// Steps through shared memory, with a thread in the place of a worker process.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "model/worker/step_channel.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr auto kLong = std::chrono::seconds(10);

ChannelShape small_shape(int ranks) {
  ChannelShape shape;
  shape.ranks = ranks;
  shape.vocab_size = 7;
  shape.hidden_size = 3;
  shape.rows = 16;
  shape.spans = 4;
  shape.blocks = 9;
  shape.embedding_width = 3;
  return shape;
}

// Does orders until one has no rows: the first logit of a row is its token, the first hidden number its rank.
void work(int fd, int rank) {
  StepChannel channel(dup(fd));
  while (true) {
    while (!channel.wait_order(rank, kLong)) continue;
    const int rows = channel.order().rows;
    if (rank == 0) {
      for (int row = 0; row < rows; ++row) {
        channel.logits()[row * 7] = static_cast<float>(channel.tokens()[row]);
        channel.hidden()[row * 3 + 2] = channel.embeddings()[row * 3 + 2] + channel.grid_positions()[row * 3 + 1];
      }
    }
    channel.finish(rank, rows == 13, rows == 13 ? "thirteen rows" : "");
    if (rows == 0) return;
  }
}

}  // namespace

TEST(steps_travel_to_every_rank_and_back) {
  StepChannel channel(small_shape(2));
  std::vector<std::thread> workers;
  const auto run = [&](int rows) {
    channel.order() = {};
    channel.order().rows = rows;
    channel.give();
    for (int rank = 0; rank < 2; ++rank) {
      while (!channel.wait_done(rank, kLong)) continue;
    }
  };
  channel.order().rows = 1;  // the order that is given from the start
  for (int rank = 0; rank < 2; ++rank) workers.emplace_back(work, channel.fd(), rank);
  for (int rank = 0; rank < 2; ++rank) {
    while (!channel.wait_done(rank, kLong)) continue;
  }
  for (int step = 0; step < 500; ++step) {
    const int rows = 1 + step % 12;
    std::iota(channel.tokens(), channel.tokens() + rows, step);
    std::iota(channel.embeddings(), channel.embeddings() + 3 * rows, 0.25F);
    std::iota(channel.grid_positions(), channel.grid_positions() + 3 * rows, step);
    run(rows);
    for (int row = 0; row < rows; ++row) {
      CHECK_EQUAL(channel.logits()[row * 7], static_cast<float>(step + row));
      CHECK_EQUAL(channel.hidden()[row * 3 + 2], static_cast<float>(step + 6 * row + 3) + 0.25F);
    }
    CHECK(!channel.has_failed(0) && !channel.has_failed(1));
  }
  run(13);
  CHECK(channel.has_failed(0) && channel.has_failed(1));
  CHECK_EQUAL(channel.text(1), std::string("thirteen rows"));
  run(1);
  CHECK(!channel.has_failed(1));
  run(0);
  for (std::thread& worker : workers) worker.join();
}

TEST(a_rank_that_does_nothing_is_waited_for_as_long_as_reported) {
  StepChannel channel(small_shape(1));
  channel.give();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(!channel.wait_done(0, std::chrono::milliseconds(20)));
  CHECK(std::chrono::steady_clock::now() - begin < kLong);
}

TEST(memory_of_something_else_is_refused) {
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  bool is_refused = false;
  try {
    const StepChannel channel(ends[0]);
  } catch (const Error& error) {
    is_refused = error.code() == ErrorCode::kInvalidArgument;
  }
  CHECK(is_refused);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace turbomind::testing
