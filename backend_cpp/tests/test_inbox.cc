// Messages to the step thread, and refusals before it.
#include <thread>

#include "engine/inbox.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

Request request_of(RequestId id) {
  return make_request(id, {1, 2, 3}, 4, [](Output&&) {});
}

}  // namespace

TEST(messages_are_taken_once_and_in_order) {
  Inbox inbox(10);
  inbox.submit(request_of(1));
  inbox.submit(request_of(2));
  inbox.cancel(1);
  const Inbox::Messages messages = inbox.take(false);
  CHECK_EQUAL(messages.submitted.size(), 2u);
  CHECK_EQUAL(messages.submitted[1].request.id, RequestId{2});
  CHECK(messages.cancelled == std::vector<RequestId>{1});
  CHECK(!messages.is_closed);
  CHECK(inbox.take(true).submitted.empty());
}

TEST(a_step_thread_without_work_waits_for_a_message) {
  Inbox inbox(10);
  std::thread caller([&] { inbox.submit(request_of(1)); });
  CHECK_EQUAL(inbox.take(false).submitted.size(), 1u);
  caller.join();
}

TEST(requests_beyond_what_may_wait_are_refused_wherever_the_others_are) {
  Inbox inbox(2);
  inbox.submit(request_of(1));
  inbox.take(true);  // taken, but not begun
  inbox.submit(request_of(3));
  CHECK(error_of([&] { inbox.submit(request_of(4)); }) == ErrorCode::kUnavailable);
  inbox.set_waiting(0);
  inbox.submit(request_of(5));
}

TEST(requests_that_wait_for_grammars_keep_no_others_out) {
  Inbox inbox(2);
  for (const RequestId id : {1, 2}) {
    Request structured = request_of(id);
    inbox.expect(structured);
  }
  Request one_more = request_of(3);
  CHECK(error_of([&] { inbox.expect(one_more); }) == ErrorCode::kUnavailable);
  inbox.submit(request_of(4));
  inbox.submit(request_of(5));
}

TEST(a_step_thread_without_work_can_be_woken_and_looks_again_at_its_time) {
  Inbox inbox(10);
  std::thread waker([&] { inbox.wake(); });
  CHECK(inbox.take(false).submitted.empty());
  waker.join();
  CHECK(inbox.take(false, Clock::now() + std::chrono::milliseconds(1)).submitted.empty());
}

TEST(an_expected_request_comes_in_once_it_is_compiled) {
  Inbox inbox(10);
  Request request = request_of(1);
  inbox.expect(request);
  CHECK(inbox.take(true).submitted.empty());
  inbox.deliver({std::move(request), nullptr, std::nullopt});
  CHECK_EQUAL(inbox.take(false).submitted.size(), 1u);
}

TEST(an_expected_request_that_is_cancelled_is_abandoned_once_and_never_comes_in) {
  Inbox inbox(10);
  Request request = request_of(1);
  inbox.expect(request);
  inbox.cancel(1);
  const Inbox::Messages messages = inbox.take(false);
  CHECK_EQUAL(messages.abandoned.size(), 1u);
  CHECK_EQUAL(messages.abandoned[0].id, RequestId{1});
  CHECK_EQUAL(messages.abandoned[0].input_len, 3);
  CHECK(!messages.abandoned[0].is_overdue);
  CHECK(messages.cancelled.empty());
  inbox.deliver({std::move(request), nullptr, std::nullopt});
  CHECK(inbox.take(true).submitted.empty());
}

TEST(an_expected_request_is_abandoned_at_its_deadline_alone) {
  Inbox inbox(10);
  Request late = request_of(1);
  late.deadline = Clock::now();
  Request patient = request_of(2);
  patient.deadline = Clock::now() + std::chrono::hours(1);
  inbox.expect(patient);
  inbox.expect(late);
  const Inbox::Messages messages = inbox.take(false);
  CHECK_EQUAL(messages.abandoned.size(), 1u);
  CHECK_EQUAL(messages.abandoned[0].id, RequestId{1});
  CHECK(messages.abandoned[0].is_overdue);
}

TEST(a_closed_inbox_gives_up_what_it_expects_and_takes_nothing_more) {
  Inbox inbox(10);
  Request request = request_of(1);
  inbox.expect(request);
  inbox.submit(request_of(2));
  inbox.close();
  const Inbox::Messages messages = inbox.take(false);
  CHECK(messages.is_closed);
  CHECK_EQUAL(messages.submitted.size(), 1u);
  CHECK_EQUAL(messages.abandoned.size(), 1u);
  CHECK(inbox.take(false).is_closed);
  inbox.deliver({std::move(request), nullptr, std::nullopt});
  CHECK(inbox.take(false).submitted.empty());
  CHECK(error_of([&] { inbox.submit(request_of(3)); }) == ErrorCode::kUnavailable);
}

}  // namespace turbomind::testing
