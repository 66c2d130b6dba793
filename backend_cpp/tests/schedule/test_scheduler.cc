// The scheduler alone, driven step by step.
#include <algorithm>
#include <set>

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
  group->id = id;
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
          scheduler.remove_if([id](const Sequence& s) { return s.group->id == id; });
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
            if (step.input.spans[i].requested == SpanLogits::kNone) continue;
            step.sequences[i]->tokens.push_back(1);
            if (step.sequences[i]->tokens.size() >= 50 || random() % 10 == 0)
              finished.push_back(step.sequences[i]->group->id);
          }
          for (const RequestId id : finished) {
            CHECK_EQUAL(scheduler.remove_if([id](const Sequence& s) { return s.group->id == id; }).size(), 1u);
          }
        }
      }
      scheduler.check_invariants();
    }
    scheduler.remove_if([](const Sequence&) { return true; });
    scheduler.check_invariants();
    CHECK_EQUAL(blocks.pool().available_count(), 16);
  }
}

namespace {

CachePlan hybrid_plan() {
  return plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kState, 4)});
}

// Runs a step; returns how many of its tokens are prompts'.
int run_step(Scheduler& scheduler, Step& step) {
  scheduler.plan(step);
  scheduler.check_invariants();
  scheduler.commit(step);
  scheduler.check_invariants();
  int rows = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const StepSpan& span = step.input.spans[i];
    if (span.first_position < step.sequences[i]->prompt_len()) rows += span.count;
    if (span.requested != SpanLogits::kNone) step.sequences[i]->tokens.push_back(static_cast<int32_t>(i));
  }
  return rows;
}

std::vector<int32_t> begins_alike(int shared, int suffix_len, RequestId id) {
  std::vector<int32_t> prompt(static_cast<size_t>(shared), 1);
  prompt.insert(prompt.end(), static_cast<size_t>(suffix_len), static_cast<int32_t>(id + 2));
  return prompt;
}

}  // namespace

TEST(what_requests_begin_with_is_computed_once_when_they_come_at_once) {
  const auto computed = [](const CachePlan& plan, int min_copied, int suffix_len) {
    BlockCache blocks(plan, {1000});
    blocks.snapshots().limits.min_copied = min_copied;
    Scheduler scheduler({8, 12}, blocks);
    Step step;
    for (RequestId id = 2; id <= 12; id += 2) scheduler.add(make_sequence(id, begins_alike(42, suffix_len, id)));
    int rows = 0;
    for (int round = 0; round < 20; ++round) rows += run_step(scheduler, step);
    CHECK_EQUAL(scheduler.running_count(), 6);
    return rows;
  };
  CHECK_EQUAL(computed(hybrid_plan(), 2, 6), 48 + 5 * (48 - 40));
  for (const CachePlan& plan : {small_plan(4), small_plan(4, 10)}) {
    CHECK_EQUAL(computed(plan, 3, 6), 48 + 5 * (48 - 40));  // two tokens of a block are not worth a copy
    CHECK_EQUAL(computed(plan, 2, 6), 48 + 5 * (48 - 42));
    CHECK_EQUAL(computed(plan, 2, 1), 43 + 5 * (43 - 42));  // the response's first token fills the block
    CHECK_EQUAL(computed(plan, 1, 0), 42 + 5 * (42 - 40));  // nobody waits longer for it
  }
}

TEST(whoever_waits_for_a_prefix_goes_on_when_the_first_leaves_and_lets_others_pass) {
  BlockCache blocks(small_plan(4), {1000});
  Scheduler scheduler({8, 12}, blocks);
  Step step;
  scheduler.add(make_sequence(1, begins_alike(42, 6, 1)));
  scheduler.add(make_sequence(2, begins_alike(42, 6, 2)));
  scheduler.add(make_sequence(3, begins_alike(0, 5, 3)));
  int rows = run_step(scheduler, step);
  CHECK_EQUAL(scheduler.running_count(), 2);  // the first, and the one that shares nothing
  scheduler.remove_if([](const Sequence& s) { return s.group->id == 1; });
  for (int round = 0; round < 10; ++round) rows += run_step(scheduler, step);
  CHECK_EQUAL(scheduler.waiting_count(), 0);
  CHECK_EQUAL(rows, 12 + 5 + 48);  // what the first computed is lost, as it wanted
}

TEST(whoever_is_served_first_waits_for_nobody) {
  BlockCache blocks(small_plan(4), {1000});
  Scheduler scheduler({8, 12}, blocks);
  Step step;
  scheduler.add(make_sequence(1, begins_alike(42, 6, 1), 1));
  run_step(scheduler, step);
  scheduler.add(make_sequence(2, begins_alike(42, 6, 2), 0));
  run_step(scheduler, step);
  CHECK_EQUAL(scheduler.running_count(), 2);
}

TEST(with_enough_memory_no_block_of_prompts_is_computed_twice) {
  std::mt19937 random(7);
  int shared = 0;
  for (int history = 0; history < 200; ++history) {
    BlockCache blocks(history % 2 == 0 ? small_plan(4) : hybrid_plan(), {6000});
    blocks.snapshots().limits.interval = 4;  // a state is found wherever keys and values are
    Scheduler scheduler({4, 12}, blocks);
    Step step;
    std::set<std::vector<int32_t>> computed;
    RequestId next = 1;
    for (int event = 0; event < 100; ++event) {
      if (random() % 3 == 0) {
        std::vector<int32_t> prompt;
        for (unsigned i = 0; i < 5 + random() % 40; ++i) prompt.push_back(i % 4 == 0 && random() % 5 == 0 ? 3 : 4);
        scheduler.add(make_sequence(2 * next++, std::move(prompt)));
        continue;
      }
      if (random() % 12 == 0) {
        const RequestId id = 2 + 2 * (random() % next);
        scheduler.remove_if([id](const Sequence& s) { return s.group->id == id; });
        continue;
      }
      run_step(scheduler, step);
      for (size_t i = 0; i < step.sequences.size(); ++i) {
        const Sequence& sequence = *step.sequences[i];
        const StepSpan& span = step.input.spans[i];
        shared += span.first_position == sequence.group->cached_len && span.first_position > 0;
        for (int end = span.first_position / 4 * 4 + 4; end <= span.first_position + span.count; end += 4) {
          if (end >= sequence.prompt_len()) break;  // the last token is always computed
          CHECK(computed.insert({sequence.tokens.begin(), sequence.tokens.begin() + end}).second);
        }
      }
      for (const auto& sequence : step.sequences) {
        if (sequence->tokens.size() < 50) continue;
        scheduler.remove_if([&](const Sequence& s) { return &s == sequence.get(); });
      }
    }
    CHECK_EQUAL(scheduler.counts().preemptions, 0);
  }
  CHECK(shared > 1000);
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
      if (step.input.spans[i].requested != SpanLogits::kNone) step.sequences[i]->tokens.push_back(1);
    }
  };
  run();
  scheduler.add(make_sequence(7, std::vector<int32_t>(60, 1), 0, 7));
  for (int round = 0; round < 10; ++round) {  // 60 tokens at 12 - 6 a step
    run();
    CHECK_EQUAL(step.sequences.size(), 7u);
    CHECK_EQUAL(step.input.tokens.size(), 12u);
  }
  CHECK(step.input.spans.back().requested == SpanLogits::kLast);
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
  scheduler.remove_if([](const Sequence& s) { return s.group->id == 1; });
  run();
  CHECK_EQUAL(scheduler.running_count(), 1);
  CHECK_EQUAL(scheduler.waiting_count(), 0);
  CHECK_EQUAL(scheduler.counts().preemptions, 0);
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
    CHECK(blocks.pool().referenced_count() <= bound);
    scheduler.commit(step);
    scheduler.check_invariants();
    if (step.input.spans[0].requested != SpanLogits::kNone) step.sequences[0]->tokens.push_back(2);
  }
  CHECK_EQUAL(scheduler.counts().preemptions, 0);
}

TEST(texts_of_an_encoder_run_whole_the_first_and_then_the_shortest) {
  BlockCache blocks(plan_cache(4, {}), {0});
  Scheduler scheduler({3, 12, false, true}, blocks);
  const std::vector<size_t> lengths = {9, 11, 30, 2, 1, 1, 3};
  for (RequestId id = 1; id <= lengths.size(); ++id) {
    scheduler.add(make_sequence(id, std::vector<int32_t>(lengths[id - 1], 1), 0, id));
  }
  Step step;
  const std::vector<std::vector<RequestId>> expected = {{1, 5, 6}, {2}, {3}, {4, 7}};
  for (const std::vector<RequestId>& batch : expected) {
    scheduler.plan(step);
    scheduler.commit(step);
    scheduler.check_invariants();
    std::vector<RequestId> found;
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      found.push_back(step.sequences[i]->group->id);
      CHECK_EQUAL(static_cast<size_t>(step.input.spans[i].count), lengths[found.back() - 1]);
      CHECK(step.input.spans[i].requested == SpanLogits::kLast);
    }
    CHECK(found == batch);
    scheduler.remove_if([&](const Sequence& s) { return std::ranges::count(found, s.group->id) > 0; });
  }
  CHECK_EQUAL(scheduler.running_count() + scheduler.waiting_count(), 0);
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
    CHECK_EQUAL(step.sequences[0]->group->id, expected);
    scheduler.commit(step);
    scheduler.remove_if([expected](const Sequence& s) { return s.group->id == expected; });
  }
}

}  // namespace turbomind::testing
