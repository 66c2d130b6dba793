// Conversations between requests: what a turn begins with, what is left of it, what is refused.
#include "engine/schedule/session_table.h"
#include "tests/cache_plans.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

SessionParams session(uint64_t id, bool start, int step = -1) {
  return {id, start, false, false, step};
}

// Blocks of 4 tokens, a session length of 20, at most 2 idle sessions.
struct Fixture {
  BlockCache blocks{small_plan(4), {16}};
  SessionTable table{{std::chrono::seconds(3600), 2, 20}, blocks, false};

  // Runs a turn that leaves `tokens`, with their blocks in the cache, as a request does.
  void leave(uint64_t id, std::vector<int32_t> tokens, RequestId request = 1) {
    table.begin(session(id, true), request, id);
    std::vector<int32_t> allocated;
    for (int index = 0; (index + 1) * 4 <= static_cast<int>(tokens.size()); ++index) {
      allocated.push_back(blocks.allocate());
      publish(blocks, {id, tokens}, index, allocated);
    }
    blocks.release(allocated);
    table.finish(session(id, true), request, std::move(tokens));
  }

  std::vector<int32_t> history(uint64_t id, int step = -1) {
    const auto kept = table.prepare(session(id, false, step), 1).history;
    return {kept.begin(), kept.end()};
  }
};

}  // namespace

TEST(a_turn_begins_with_what_the_last_one_left_rolled_back_to_its_step) {
  Fixture fixture;
  fixture.leave(7, {1, 2, 3, 4, 5});
  CHECK(fixture.history(7) == std::vector<int32_t>({1, 2, 3, 4, 5}));
  CHECK(fixture.history(7, 2) == std::vector<int32_t>({1, 2}));
  CHECK(fixture.history(7, 50) == std::vector<int32_t>({1, 2, 3, 4, 5}));
  const SessionTable::Turn turn = fixture.table.prepare(session(7, false), 1);
  CHECK(turn.scope == uint64_t{7});
  CHECK(!fixture.table.prepare(session(7, true), 1).scope);
}

TEST(preparing_a_turn_changes_nothing) {
  Fixture fixture;
  fixture.leave(7, {1, 2, 3, 4, 5});
  fixture.table.prepare(session(7, false, 1), 1);
  fixture.table.prepare(session(7, true), 1);
  CHECK(error_of([&] { fixture.table.prepare(session(7, false, 3), 17); }) == ErrorCode::kTooLong);
  CHECK(error_of([&] { fixture.table.prepare(session(7, false, 0), 0); }) == ErrorCode::kInvalidArgument);
  CHECK(error_of([&] { fixture.table.prepare(session(8, true), 20); }) == ErrorCode::kTooLong);
  CHECK_EQUAL(fixture.table.size(), 1u);
  CHECK_EQUAL(fixture.table.busy_count(), 0);
  CHECK_EQUAL(fixture.blocks.order().idle_pages(), 1);
  CHECK_EQUAL(fixture.history(7).size(), 5u);
}

TEST(a_busy_session_refuses_turns_and_ends_until_its_request_has_finished) {
  Fixture fixture;
  fixture.table.begin(session(7, true), 42, 7);
  CHECK_EQUAL(fixture.table.busy_count(), 1);
  for (const bool start : {false, true}) {
    CHECK(error_of([&] { fixture.table.prepare(session(7, start), 1); }) == ErrorCode::kSessionBusy);
  }
  SessionParams end = session(7, false);
  end.end = true;
  CHECK(error_of([&] { fixture.table.check_control(end); }) == ErrorCode::kSessionBusy);
  end.stop = true;
  CHECK_EQUAL(fixture.table.check_control(end), RequestId{42});
  fixture.table.finish(session(7, true), 41, {1});  // somebody else's
  CHECK_EQUAL(fixture.table.busy_count(), 1);
  fixture.table.finish(session(7, true), 42, {1});
  CHECK_EQUAL(fixture.table.busy_count(), 0);
  CHECK_EQUAL(fixture.history(7).size(), 1u);
}

TEST(there_must_be_something_to_stop_or_to_end) {
  Fixture fixture;
  SessionParams stop = session(7, false);
  stop.stop = true;
  CHECK(error_of([&] { fixture.table.check_control(stop); }) == ErrorCode::kUnknownSession);
  CHECK(error_of([&] { fixture.table.prepare(session(7, false), 1); }) == ErrorCode::kUnknownSession);
  fixture.leave(7, {1});
  CHECK(error_of([&] { fixture.table.check_control(stop); }) == ErrorCode::kSessionIdle);
  stop.end = true;
  CHECK_EQUAL(fixture.table.check_control(stop), RequestId{0});
}

TEST(a_session_that_goes_or_begins_again_gives_up_its_blocks) {
  Fixture fixture;
  fixture.leave(7, {1, 2, 3, 4, 5, 6, 7, 8});
  fixture.leave(8, {1, 2, 3, 4});
  CHECK_EQUAL(fixture.blocks.order().idle_pages(), 3);
  fixture.table.erase(7);
  CHECK_EQUAL(fixture.blocks.order().idle_pages(), 1);
  fixture.table.begin(session(8, true), 2, 9);
  CHECK_EQUAL(fixture.blocks.order().idle_pages(), 0);
  fixture.blocks.check_invariants();
}

TEST(blocks_that_others_may_use_outlive_the_session) {
  BlockCache blocks(small_plan(4), {16});
  SessionTable table({std::chrono::seconds(3600), 2, 20}, blocks, true);
  table.begin(session(7, true), 1, 0);
  std::vector<int32_t> allocated = {blocks.allocate()};
  publish(blocks, {0, {1, 2, 3, 4}}, 0, allocated);
  blocks.release(allocated);
  table.finish(session(7, true), 1, {1, 2, 3, 4});
  table.erase(7);
  CHECK_EQUAL(blocks.order().idle_pages(), 1);
}

TEST(a_session_that_was_to_end_with_its_request_is_gone) {
  Fixture fixture;
  SessionParams params = session(7, true);
  params.end = true;
  fixture.table.begin(params, 1, 7);
  fixture.table.finish(params, 1, {1, 2});
  CHECK_EQUAL(fixture.table.size(), 0u);
}

TEST(idle_sessions_go_when_they_are_old_and_the_least_recently_used_when_they_are_many) {
  Fixture fixture;
  for (const uint64_t id : {1, 2, 3}) fixture.leave(id, {1, 2, 3, 4});
  fixture.table.begin(session(4, true), 9, 4);
  fixture.table.expire(Clock::now());
  CHECK_EQUAL(fixture.table.size(), 2u);  // one idle and the busy one
  CHECK_EQUAL(fixture.history(3).size(), 4u);
  CHECK_EQUAL(fixture.blocks.order().idle_pages(), 1);
  fixture.table.expire(Clock::now() + std::chrono::hours(2));
  CHECK_EQUAL(fixture.table.size(), 1u);
  CHECK_EQUAL(fixture.table.busy_count(), 1);
  CHECK_EQUAL(fixture.blocks.order().idle_pages(), 0);
}

}  // namespace turbomind::testing
