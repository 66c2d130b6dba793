// The scheduler alone, driven step by step.
#include <algorithm>

#include "engine/schedule/scheduler.h"
#include "tests/cache_plans.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

std::shared_ptr<Sequence> make_sequence(RequestId id, std::vector<int32_t> prompt, int priority = 0,
                                        uint64_t scope = 0) {
  static const TokenTable table = letters();
  GenerationParams params;
  params.max_new_tokens = 20;
  auto group = std::make_shared<SequenceGroup>();
  group->request = id;
  group->rules = std::make_shared<const GenerationRules>(params, OutputSpace{table, kStubVocab, 1}, prompt);
  group->priority = priority;
  group->arrival = id;
  group->scope = scope;
  group->keeps_blocks = id % 2 == 0;
  return std::make_shared<Sequence>(std::move(group), 0, std::move(prompt));
}

}  // namespace

TEST(scheduler_invariants_hold_after_every_event) {
  std::mt19937 random(5);
  for (int history = 0; history < 600; ++history) {
    const int window = history % 2 == 0 ? 0 : 1 + history / 2 % 20;
    BlockCache blocks(small_plan(4, window), {16, history % 3 * 5});
    Scheduler scheduler({4, 12}, blocks);
    Step step;
    RequestId next = 1;
    for (int event = 0; event < 80; ++event) {
      switch (random() % 4) {
        case 0: {
          std::vector<int32_t> prompt;
          for (unsigned i = 0; i < 1 + random() % 30; ++i) prompt.push_back(static_cast<int32_t>(random() % 2));
          const RequestId id = next++;
          scheduler.add(
              make_sequence(id, std::move(prompt), static_cast<int>(random() % 2), random() % 2 == 0 ? 0 : id));
          break;
        }
        case 1: {
          const RequestId id = 1 + random() % next;
          scheduler.remove_if([id](const Sequence& s) { return s.group->request == id; });
          break;
        }
        default: {
          scheduler.plan(step);
          scheduler.check_invariants();
          CHECK(static_cast<int>(step.input.tokens.size()) <= 12);
          CHECK(step.sequences.size() == step.input.spans.size());
          for (const StepSpan& span : step.input.spans) {
            const int first_seen = window == 0 ? 0 : std::max(0, span.first_position - window + 1);
            for (int position = first_seen; position < span.first_position + span.count; ++position) {
              CHECK(span.tables->front().at(static_cast<size_t>(position / 4)) != kNoBlock);
            }
          }
          if (scheduler.running_count() + scheduler.waiting_count() > 0) CHECK(!step.sequences.empty());
          scheduler.commit(step);
          scheduler.check_invariants();
          std::vector<RequestId> finished;
          for (size_t i = 0; i < step.sequences.size(); ++i) {
            if (step.input.spans[i].wanted == SpanRows::kNone) continue;
            step.sequences[i]->tokens.push_back(1);
            if (step.sequences[i]->tokens.size() >= 50 || random() % 10 == 0)
              finished.push_back(step.sequences[i]->group->request);
          }
          for (const RequestId id : finished) {
            CHECK_EQUAL(scheduler.remove_if([id](const Sequence& s) { return s.group->request == id; }).size(), 1u);
          }
        }
      }
      scheduler.check_invariants();
    }
    scheduler.remove_if([](const Sequence&) { return true; });
    scheduler.check_invariants();
    CHECK_EQUAL(blocks.available_count(), 16);
  }
}

TEST(a_long_prompt_does_not_delay_running_answers_and_is_not_starved_by_them) {
  BlockCache blocks(small_plan(4), {1000});
  Scheduler scheduler({8, 12}, blocks);
  Step step;
  for (RequestId id = 1; id <= 6; ++id) scheduler.add(make_sequence(id, {1}, 0, id));
  const auto run = [&] {
    scheduler.plan(step);
    scheduler.commit(step);
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      if (step.input.spans[i].wanted != SpanRows::kNone) step.sequences[i]->tokens.push_back(1);
    }
  };
  run();
  scheduler.add(make_sequence(7, std::vector<int32_t>(60, 1), 0, 7));
  for (int round = 0; round < 10; ++round) {  // 60 tokens at 12 - 6 a step
    run();
    CHECK_EQUAL(step.sequences.size(), 7u);
    CHECK_EQUAL(step.input.tokens.size(), 12u);
  }
  CHECK(step.input.spans.back().wanted == SpanRows::kLast);
}

TEST(who_is_admitted_leaves_running_sequences_the_blocks_that_they_will_need) {
  BlockCache blocks(small_plan(4), {10});
  Scheduler scheduler({4, 8}, blocks);
  Step step;
  const auto run = [&] {
    scheduler.plan(step);
    scheduler.commit(step);
  };
  scheduler.add(make_sequence(1, std::vector<int32_t>(32, 1), 0, 1));  // 8 blocks, of which a step takes 2
  run();
  scheduler.add(make_sequence(2, std::vector<int32_t>(12, 1), 0, 2));  // 3 blocks
  for (int more = 0; more < 3; ++more) {
    run();
    CHECK_EQUAL(scheduler.running_count(), 1);
  }
  scheduler.remove_if([](const Sequence& s) { return s.group->request == 1; });
  run();
  CHECK_EQUAL(scheduler.running_count(), 1);
  CHECK_EQUAL(scheduler.waiting_count(), 0);
  CHECK_EQUAL(scheduler.preemption_count(), 0);
}

TEST(a_sequence_with_windows_holds_a_bounded_number_of_blocks) {
  const CachePlan plan = small_plan(4, 10);
  BlockCache blocks(plan, {40});
  Scheduler scheduler({2, 12}, blocks);
  Step step;
  const int bound = plan.pages_for(1 << 20, 12);
  CHECK(bound <= 8);
  scheduler.add(make_sequence(1, std::vector<int32_t>(3000, 1), 0, 1));
  for (int round = 0; round < 3000 / 12 + 1000; ++round) {
    scheduler.plan(step);
    CHECK_EQUAL(step.sequences.size(), 1u);
    CHECK(blocks.referenced_count() <= bound);
    scheduler.commit(step);
    scheduler.check_invariants();
    if (step.input.spans[0].wanted != SpanRows::kNone) step.sequences[0]->tokens.push_back(2);
  }
  CHECK_EQUAL(scheduler.preemption_count(), 0);
}

TEST(a_lower_priority_number_is_admitted_first) {
  BlockCache blocks(small_plan(4), {100});
  Scheduler scheduler({1, 12}, blocks);
  Step step;
  scheduler.add(make_sequence(1, {1, 2}, 5));
  scheduler.add(make_sequence(2, {1, 2}, -1));
  scheduler.add(make_sequence(3, {1, 2}, 0));
  for (const RequestId expected : {2, 3, 1}) {
    scheduler.plan(step);
    CHECK_EQUAL(step.sequences.size(), 1u);
    CHECK_EQUAL(step.sequences[0]->group->request, expected);
    scheduler.commit(step);
    scheduler.remove_if([expected](const Sequence& s) { return s.group->request == expected; });
  }
}

}  // namespace turbomind::testing
