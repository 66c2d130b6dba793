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
  for (uint32_t number = 1;; ++number) {
    while (!channel.wait_order(number - 1, kLong)) continue;
    const Order order = channel.order(number);
    if (rank == 0) {
      for (int row = 0; row < order.rows; ++row) {
        channel.logits()[row * 7] = static_cast<float>(channel.tokens(order.area)[row]);
        channel.hidden()[row * 3 + 2] =
            channel.embeddings(order.area)[row * 3 + 2] + channel.grid_positions(order.area)[row * 3 + 1];
        if (row < 4) channel.chosen(order.area)[row] = channel.tokens(order.area)[row] + 5;
      }
    }
    channel.finish(rank, number, order.rows == 13, order.rows == 13 ? "thirteen rows" : "");
    if (order.rows == 0) return;
  }
}

uint32_t give(StepChannel& channel, int rows, int area = 0) {
  channel.order() = {};
  channel.order().rows = rows;
  channel.order().area = area;
  return channel.give();
}

void await(const StepChannel& channel, uint32_t number) {
  for (int rank = 0; rank < channel.shape().ranks; ++rank) {
    while (!channel.wait_done(rank, number, kLong)) continue;
  }
}

}  // namespace

TEST(steps_travel_to_every_rank_and_back) {
  StepChannel channel(small_shape(2));
  std::vector<std::thread> workers;
  channel.order(channel.given()).rows = 1;  // the order that is given from the start
  for (int rank = 0; rank < 2; ++rank) workers.emplace_back(work, channel.fd(), rank);
  await(channel, channel.given());
  for (int step = 0; step < 500; ++step) {
    const int rows = 1 + step % 12;
    const int area = step % 2;
    std::iota(channel.tokens(area), channel.tokens(area) + rows, step);
    std::iota(channel.embeddings(area), channel.embeddings(area) + 3 * rows, 0.25F);
    std::iota(channel.grid_positions(area), channel.grid_positions(area) + 3 * rows, step);
    const uint32_t number = give(channel, rows, area);
    await(channel, number);
    for (int row = 0; row < rows; ++row) {
      CHECK_EQUAL(channel.logits()[row * 7], static_cast<float>(step + row));
      CHECK_EQUAL(channel.hidden()[row * 3 + 2], static_cast<float>(step + 6 * row + 3) + 0.25F);
    }
    CHECK(!channel.has_failed(0, number) && !channel.has_failed(1, number));
  }
  give(channel, 0);
  for (std::thread& worker : workers) worker.join();
}

TEST(two_steps_are_under_way_and_the_first_failure_stays_known) {
  StepChannel channel(small_shape(1));
  channel.order(channel.given()).rows = 1;
  std::thread worker(work, channel.fd(), 0);
  uint32_t before = channel.given();
  for (int step = 0; step < 500; ++step) {
    const int area = step % 2;
    std::iota(channel.tokens(area), channel.tokens(area) + 4, step);
    const uint32_t number = give(channel, 4, area);
    await(channel, before);
    if (step > 0) CHECK_EQUAL(channel.chosen(1 - area)[3], step - 1 + 3 + 5);
    before = number;
  }
  const uint32_t failed = give(channel, 13);
  const uint32_t after = give(channel, 1);
  await(channel, after);
  CHECK(!channel.has_failed(0, before));
  CHECK(channel.has_failed(0, failed) && channel.has_failed(0, after));
  CHECK_EQUAL(channel.text(0), std::string("thirteen rows"));
  give(channel, 0);
  worker.join();
}

TEST(a_rank_that_does_nothing_is_waited_for_as_long_as_reported) {
  StepChannel channel(small_shape(1));
  const uint32_t number = channel.give();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(!channel.wait_done(0, number, std::chrono::milliseconds(20)));
  CHECK(std::chrono::steady_clock::now() - begin < kLong);
}

TEST(memory_of_something_else_or_another_layout_is_refused) {
  const auto is_rejected = [](int fd) {
    try {
      const StepChannel channel(fd);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  CHECK(is_rejected(ends[0]));
  close(ends[1]);
  StepChannel channel(small_shape(1));
  CHECK(!is_rejected(dup(channel.fd())));
  const uint64_t other = 5;
  CHECK_EQUAL(pwrite(channel.fd(), &other, sizeof(other), 0), static_cast<ssize_t>(sizeof(other)));
  CHECK(is_rejected(dup(channel.fd())));
}

}  // namespace turbomind::testing
