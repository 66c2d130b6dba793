// Sequences in caches with several groups: what is found again, what is evicted first, what is refused.
#include "engine/cache/sequence_memory.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "tests/cache/images.h"
#include "tests/cache_plans.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

using Tokens = std::vector<int32_t>;

// A sequence that runs all its tokens at once, but for the stops of its memory, and goes.
int run_whole(BlockCache& cache, const Tokens& tokens, const std::vector<int>& branch_points = {}, int response = 0) {
  SequenceMemory memory;
  const PrefixKey key{0, tokens};
  const auto prompt = static_cast<int>(tokens.size()) - response;
  memory.match(cache, key, prompt - 1, prompt, branch_points);
  const int cached = memory.cached();
  while (memory.cached() < static_cast<int>(tokens.size())) {
    const int end = memory.cached() < prompt ? prompt : memory.cached() + 1;
    const int count = memory.next_stop(cache, end) - memory.cached();
    CHECK(memory.grow(cache, memory.cached() + count));
    memory.advance(cache, key, count, Keep::kContent);
  }
  memory.release(cache, key, Keep::kContent);
  cache.check_invariants();
  return cached;
}

Tokens counted(int count, int first = 0) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

CachePlan hybrid_plan() {
  return plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kState, 4)});
}

}  // namespace

TEST(a_hybrid_sequence_is_found_at_the_ends_of_prompts_messages_and_responses) {
  BlockCache cache(hybrid_plan(), {400});
  const Tokens system = counted(40);
  CHECK_EQUAL(run_whole(cache, joined(system, counted(10, 100)), {40}, 0), 0);
  // Another question after the same message, and the next turn of the conversation.
  CHECK_EQUAL(run_whole(cache, joined(system, counted(10, 200)), {40}), 40);
  const Tokens turn = joined(joined(system, counted(10, 200)), counted(13, 300));
  CHECK_EQUAL(run_whole(cache, turn, {40, 50}, 13), 48);
  CHECK_EQUAL(run_whole(cache, joined(turn, counted(5, 400))), 60);  // of 63, up to the last block
}

TEST(where_prompts_part_the_third_finds_a_snapshot) {
  BlockCache cache(hybrid_plan(), {400});
  const Tokens shared = counted(40);
  CHECK_EQUAL(run_whole(cache, joined(shared, counted(9, 100))), 0);
  CHECK_EQUAL(run_whole(cache, joined(shared, counted(9, 200))), 0);
  CHECK_EQUAL(run_whole(cache, joined(shared, counted(9, 300))), 40);
}

TEST(snapshots_nobody_came_back_to_go_first) {
  BlockCache cache(hybrid_plan(), {400});
  cache.snapshots().limits.pages = 3;
  CHECK_EQUAL(run_whole(cache, counted(10)), 0);
  for (int i = 0; i < 2; ++i) CHECK_EQUAL(run_whole(cache, counted(10)), 8);  // now it is shared
  for (int other = 1; other < 6; ++other) run_whole(cache, counted(10, 100 * other));
  CHECK_EQUAL(cache.order().snapshot_pages(), 3);
  CHECK_EQUAL(run_whole(cache, counted(10)), 8);
  CHECK_EQUAL(run_whole(cache, counted(10, 100)), 0);  // the oldest of the others
  CHECK_EQUAL(run_whole(cache, counted(10, 500)), 8);
}

TEST(the_latest_snapshot_of_each_conversation_outlives_earlier_ones) {
  BlockCache cache(hybrid_plan(), {4000});
  const int conversations = 10;
  cache.snapshots().limits.pages = conversations + 4;  // a turn makes four, one of them while it responds
  std::vector<Tokens> chats(conversations);
  for (int turn = 0; turn < 4; ++turn) {
    for (int i = 0; i < conversations; ++i) {
      Tokens& chat = chats[static_cast<size_t>(i)];
      const auto known = static_cast<int>(chat.size());
      chat = joined(chat, counted(24, 1000 * i + 24 * turn));
      CHECK_EQUAL(run_whole(cache, chat, {known + 4, known + 10}, 8), known);
    }
  }
}

TEST(a_response_keeps_the_snapshot_of_its_last_block_alone) {
  BlockCache cache(hybrid_plan(), {400});
  run_whole(cache, counted(100), {}, 90);
  CHECK_EQUAL(cache.order().snapshot_pages(), 2);  // at the ends of the prompt and of the response
  CHECK_EQUAL(run_whole(cache, counted(120)), 100);
}

TEST(content_goes_with_the_blocks_that_it_needs) {
  const CachePlan plan = plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kWindow, 4, 8)});
  BlockCache cache(plan, {22});
  run_whole(cache, counted(16));
  run_whole(cache, joined(counted(8), counted(8, 100)));  // uses the first two blocks again
  CHECK_EQUAL(cache.order().idle_pages(), 4 + 2 + 4 + 2);
  cache.contents().evict_node(cache.tree().find(cache.tree().find_root(0), {0, counted(4)}, 0));
  CHECK_EQUAL(cache.order().idle_pages(), 0);
}

// Compared with all sequences before, whose computed tokens the cache still holds.
TEST(without_states_the_longest_prefix_that_any_sequence_computed_is_found) {
  const CachePlan plans[] = {
      small_plan(4), plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kDraft, 4)}),
      plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kWindow, 4, 100)})};
  std::mt19937 random(2);
  for (const CachePlan& plan : plans) {
    for (const int min_copied : {1, 3}) {
      BlockCache cache(plan, {40'000});
      cache.snapshots().limits.min_copied = min_copied;
      std::vector<Tokens> known;
      int copied = 0;
      for (int i = 0; i < 400; ++i) {
        Tokens tokens;
        if (i % 2 == 1) tokens = known[random() % known.size()];
        if (!tokens.empty()) tokens.resize(1 + random() % tokens.size());
        for (size_t more = 1 + random() % 12; more > 0; --more) tokens.push_back(static_cast<int32_t>(random() % 3));
        int max_cached = 0;
        for (const Tokens& before : known) {
          const auto parted = std::ranges::mismatch(before, tokens).in2;
          max_cached = std::max(max_cached, static_cast<int>(parted - tokens.begin()));
        }
        max_cached = std::min(max_cached, static_cast<int>(tokens.size()) - 1);  // the last token is always computed
        if (max_cached % 4 < min_copied) max_cached -= max_cached % 4;
        CHECK_EQUAL(run_whole(cache, tokens), max_cached);
        copied += max_cached % 4 != 0;
        known.push_back(std::move(tokens));
      }
      CHECK(copied > 50);
    }
  }
}

TEST(what_blocks_share_ends_before_an_image) {
  BlockCache cache(small_plan(8), {40});
  cache.snapshots().limits.min_copied = 1;
  const Tokens tokens = counted(8);
  const auto found = [&](const std::vector<EmbeddingRange>& images) {
    SequenceMemory memory;
    const PrefixKey key{0, tokens, images};
    memory.match(cache, key, 7, 8, {});
    const int cached = memory.cached();
    CHECK(memory.grow(cache, 8));
    memory.advance(cache, key, 8 - cached, Keep::kContent);
    memory.release(cache, key, Keep::kContent);
    return cached;
  };
  CHECK_EQUAL(found({image_at(5, 1, 1)}), 0);
  CHECK_EQUAL(found({image_at(5, 2, 1)}), 5);
  CHECK_EQUAL(found({image_at(3, 1, 1)}), 3);
  CHECK_EQUAL(found({}), 5);
  CHECK_EQUAL(found({}), 7);
}

TEST(ten_thousand_conversations_leave_no_page_lost) {
  std::mt19937 random(1);
  BlockCache cache(hybrid_plan(), {300, 50});
  for (int i = 0; i < 10'000; ++i) {
    const int count = 5 + static_cast<int>(random() % 60);
    run_whole(cache, joined(counted(count, 1000 * static_cast<int>(random() % 12)), counted(5, i)), {count}, 3);
    CHECK(cache.order().snapshot_pages() <= 300 / 4);
  }
  CHECK_EQUAL(cache.pool().referenced_count(), 0);
  cache.contents().clear();
  CHECK_EQUAL(cache.pool().free_count(), 300);
}

TEST(what_has_passed_a_window_goes_before_all_else_but_for_what_an_anchor_needs) {
  const CachePlan plan = plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kWindow, 4, 8)});
  BlockCache cache(plan, {100});
  const Tokens old = counted(20, 500);
  CHECK_EQUAL(run_whole(cache, old), 0);
  CHECK_EQUAL(run_whole(cache, counted(160), {40}), 0);  // 40 blocks of each group: all of what is left
  CHECK_EQUAL(run_whole(cache, counted(40, 700)), 0);    // takes what has passed the window
  CHECK_EQUAL(run_whole(cache, old), 16);
  CHECK_EQUAL(run_whole(cache, joined(counted(40), counted(9, 900))), 40);
}

namespace {

// Reason of a refusal; empty: there is none.
template <class Function>
std::string rejection_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

// The layout of Gemma 3 270M (18 layers, each sixth sees everything, the others 512 tokens) at 8,192 tokens, and of
// GPT-OSS 20B (24 layers, each second 128 tokens) at 32,768: how much more fits than where all layers keep everything.
TEST(windows_make_room_for_more_tokens) {
  const auto gain = [](int full, int sliding, int window, int tokens, int step) {
    CacheGroup paged = small_group(MemoryKind::kPaged, 64, 0, full);
    CacheGroup narrow = small_group(MemoryKind::kWindow, 64, window, sliding);
    const CachePlan plan = plan_cache(64, {paged, narrow});
    const size_t before = static_cast<size_t>(tokens / 64 * (full + sliding)) * paged.piece_bytes;
    // Sequences that decode, and what the rows of one step take in addition.
    const int sequences = 16;
    SequenceMemory none;
    BlockCache cache(plan, {1});
    const size_t pages = static_cast<size_t>(none.missing_pages(cache, tokens) * sequences +
                                             narrow.blocks_for(step) * plan.groups[1].pages);
    return static_cast<double>(before * sequences) / static_cast<double>(pages * plan.page_bytes);
  };
  CHECK(gain(3, 15, 512, 8192, 256) >= 4);
  CHECK(gain(12, 12, 128, 32768, 256) >= 1.9);
}

TEST(groups_that_cannot_be_are_refused_with_their_layer_and_numbers) {
  const auto problem = [](CacheGroup group) {
    group.layers = {7};
    return rejection_of([&] { plan_cache(4, {small_group(MemoryKind::kPaged, 4), group}); });
  };
  CHECK_EQUAL(problem(small_group(MemoryKind::kWindow, 4, 0)),
              std::string("cache group 1, of layer 7: a window must be >= 1, got 0"));
  CHECK_EQUAL(problem(small_group(MemoryKind::kPaged, 4, 0, 0)),
              std::string("cache group 1, of layer 7: it must have at least one piece, got 0"));
  CacheGroup chunks = small_group(MemoryKind::kWindow, 4, 10);
  chunks.is_chunked = true;
  CHECK_EQUAL(problem(chunks), std::string("cache group 1, of layer 7: chunks of 10 tokens must be whole blocks, got 4 "
                                           "tokens in one (cache_block_seq_len)"));
}

TEST(layers_that_cannot_share_an_arena_are_refused_with_their_numbers) {
  const auto problem = [](CacheGroup group) {
    group.layers = {3};
    return rejection_of([&] { plan_cache(4, {small_group(MemoryKind::kPaged, 4), group}); });
  };
  CHECK_EQUAL(problem(small_group(MemoryKind::kPaged, 8)),
              std::string("cache group 1, of layer 3: a block must hold 4 tokens, as those of other layers do, got 8"));
  CacheGroup state = small_group(MemoryKind::kState, 4);
  state.piece_bytes = 16 * 64;  // a block of the other layer is 16 bytes
  CHECK_EQUAL(problem(state), std::string());
  state.piece_bytes += 16;
  CHECK_EQUAL(problem(state), std::string("cache group 1, of layer 3: pages of 1040 bytes, which it needs, cannot be "
                                          "shared: a block of 4 tokens would take 1040 bytes for 16; raise "
                                          "cache_block_seq_len"));
}

TEST(a_cache_that_cannot_hold_one_sequence_is_refused_with_the_group_that_needs_most) {
  CacheGroup paged = small_group(MemoryKind::kPaged, 4, 0, 2);
  CacheGroup state = small_group(MemoryKind::kState, 4, 0, 9);
  state.layers = {1, 2, 4};
  const CachePlan plan = plan_cache(4, {paged, state});
  const int min_pages = plan.pages_for(1, 16);
  CHECK_EQUAL(rejection_of([&] { plan.expect_a_sequence(min_pages, 16); }), std::string());
  CHECK_EQUAL(rejection_of([&] { plan.expect_a_sequence(min_pages - 1, 16); }),
              "not enough memory for the cache: the shortest sequence takes " + std::to_string(min_pages) +
                  " pages of " + std::to_string(plan.page_bytes) + " bytes, and there are " +
                  std::to_string(min_pages - 1) + "; cache group 1, of layer 1, takes " +
                  std::to_string(plan.groups[1].pages) +
                  " of them; raise cache_max_entry_count or lower cache_block_seq_len");
}

}  // namespace turbomind::testing
