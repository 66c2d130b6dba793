// Steps over a scheduler's sequences: who gets what a step brings, and when the next one begins.
#include "engine/schedule/step_loop.h"
#include "tests/cache_plans.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

struct Fixture {
  explicit Fixture(bool samples)
      : blocks(small_plan(4), {40}), scheduler({8, 24}, blocks), loop(scheduler, runner(samples), stats) {}

  StubRunner& runner(bool samples) {
    stubs_sample_tokens = samples;
    stub = std::make_unique<StubRunner>();
    stub->allocate_cache({small_plan(4), {40}, 0});
    return *stub;
  }

  std::shared_ptr<Sequence> add(RequestId id, std::vector<int32_t> prompt, int max_new_tokens) {
    GenerationParams params;
    params.max_new_tokens = max_new_tokens;
    auto group = std::make_shared<SequenceGroup>();
    group->id = id;
    group->arrival = id;
    group->scope = id;
    group->rules = std::make_shared<const GenerationRules>(params, stub_space(), prompt);
    const auto sequence = std::make_shared<Sequence>(group, 0, std::move(prompt));
    scheduler.add(sequence);
    return sequence;
  }

  // Takes tokens as the engine does, and ends what is finished.
  void take(Sequence& sequence, const SpanOutput& output) {
    ++outputs[sequence.group->id];
    const FinishReason finish = output.chosen != nullptr
                                    ? sequence.generation.advance(*output.chosen)
                                    : sequence.generation.advance(sampler, output.logits_of(output.count - 1),
                                                                  output.hidden_of(output.count - 1));
    if (finish != FinishReason::kNone) end(sequence.group->id);
  }
  void end(RequestId id) {
    scheduler.remove_if([id](const Sequence& s) { return s.group->id == id; });
  }
  void run() {
    loop.run([this](const std::shared_ptr<Sequence>& sequence, const SpanOutput& output) { take(*sequence, output); });
    scheduler.check_invariants();
  }
  bool has_work() const { return loop.is_in_flight() || scheduler.running_count() + scheduler.waiting_count() > 0; }

  std::unique_ptr<StubRunner> stub;
  BlockCache blocks;
  Scheduler scheduler;
  EngineStats stats;
  StepLoop loop;
  Sampler sampler{kStubVocab};
  std::map<RequestId, int> outputs;
};

}  // namespace

TEST(each_sequence_gets_its_own_rows_whoever_chooses) {
  for (const bool samples : {false, true}) {
    Fixture fixture(samples);
    std::mt19937 random(1);
    std::map<RequestId, std::vector<int32_t>> prompts;
    std::map<RequestId, std::shared_ptr<Sequence>> sequences;
    for (RequestId id = 1; id <= 5; ++id) {
      prompts[id] = random_prompt(random, 3 + 9 * static_cast<int>(id));  // the longest take several steps
      sequences[id] = fixture.add(id, prompts[id], static_cast<int>(id));
    }
    while (fixture.has_work()) fixture.run();
    for (const auto& [id, sequence] : sequences) {
      const auto begin = sequence->tokens.begin() + sequence->prompt_len();
      CHECK(std::vector<int32_t>(begin, sequence->tokens.end()) == expected_tokens(prompts[id], static_cast<int>(id)));
      CHECK_EQUAL(fixture.outputs[id], static_cast<int>(id));
    }
    CHECK_EQUAL(fixture.blocks.pool().referenced_count(), 0);
    CHECK_EQUAL(fixture.stub->steps_ahead > 0, samples);
  }
}

TEST(a_sequence_that_ended_gets_nothing_of_the_step_in_flight) {
  Fixture fixture(true);
  fixture.add(1, {1, 2}, 10);
  fixture.add(2, {3, 4}, 10);
  fixture.run();
  CHECK(fixture.loop.is_in_flight());
  fixture.end(1);
  fixture.run();
  CHECK_EQUAL(fixture.outputs[1], 1);
  CHECK_EQUAL(fixture.outputs[2], 2);
}

TEST(a_step_in_flight_can_be_forgotten) {
  Fixture fixture(true);
  const std::weak_ptr<Sequence> sequence = fixture.add(1, {1, 2}, 10);
  fixture.run();
  CHECK(fixture.loop.is_in_flight());
  fixture.loop.abort();
  CHECK(!fixture.loop.is_in_flight());
  fixture.end(1);
  CHECK(sequence.expired());
}

TEST(steps_rows_and_time_are_counted) {
  Fixture fixture(false);
  fixture.add(1, std::vector<int32_t>(30, 1), 3);
  while (fixture.has_work()) fixture.run();
  fixture.run();  // nothing to do
  CHECK_EQUAL(fixture.stats.steps, 4);
  CHECK_EQUAL(fixture.stats.tokens_computed, 32);
  CHECK(fixture.stats.step_seconds >= fixture.stats.forward_seconds);
}

}  // namespace turbomind::testing
