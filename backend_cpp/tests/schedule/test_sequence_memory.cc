// What sequences hold in cache groups of all kinds, compared with a simple simulated memory: what is read must have
// been written by whoever had the same tokens.
#include <map>
#include <random>

#include "base/error.h"
#include "engine/schedule/image_blocks.h"
#include "engine/schedule/sequence_memory.h"
#include "tests/cache_plans.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr int kBlockLen = 4;

using Tokens = std::vector<int32_t>;

// What follows from the first `count` tokens, in a scope.
uint64_t hash_of(const PrefixScope& scope, const Tokens& tokens, int count) {
  uint64_t hash = 1469598103934665603ull ^ (scope.realm * 31 + static_cast<uint64_t>(scope.variant));
  for (int i = 0; i < count; ++i)
    hash = (hash ^ static_cast<uint64_t>(tokens[static_cast<size_t>(i)] + 1)) * 1099511628211ull;
  return hash;
}

// Pages of both memories, and what is in them: by slot what was written there, by tokens what states came to.
struct Pages {
  struct Page {
    std::map<int, uint64_t> slots;
    std::map<int, uint64_t> states;
  };
  explicit Pages(const CacheSize& size) : all(static_cast<size_t>(size.page_count + size.host_page_count)) {}

  Page& at(int32_t page) {
    CHECK(page >= 0);
    return all.at(static_cast<size_t>(page));
  }
  void move(const std::vector<PageMove>& moves) {
    for (const auto [from, to] : moves) at(to) = at(from);
  }

  std::vector<Page> all;
};

struct Simulated {
  Simulated(PrefixScope of, Tokens all_tokens)
      : scope(of), tokens(std::move(all_tokens)), prompt_len(static_cast<int>(tokens.size())) {}

  PrefixKey key() const { return {scope, tokens}; }

  PrefixScope scope;
  Tokens tokens;
  int prompt_len;
  SequenceMemory memory;
  int draft_rows = 0;
};

class History {
 public:
  History(unsigned seed, const CachePlan& plan, const CacheSize& size)
      : random_(seed), cache_(plan, size), pages_(size) {
    cache_.set_snapshot_interval(seed % 2 == 0 ? 2 * kBlockLen : 0);
  }

  void run(int events) {
    for (int event = 0; event < events; ++event) {
      switch (below(10)) {
        case 0:
        case 1:
          begin();
          break;
        case 2:
          end(below(3) == 0 ? Keep::kNothing : Keep::kContent);
          break;
        case 3:
          fork();
          break;
        case 4:
          if (below(6) == 0) cache_.forget_realm(static_cast<uint64_t>(below(2)));
          break;
        default:
          step();
      }
      check();
    }
    while (!running_.empty()) end(Keep::kContent);
    check();
    CHECK_EQUAL(cache_.referenced_count(), 0);
    cache_.forget_all();
    CHECK_EQUAL(cache_.free_count(), cache_.page_count());
    CHECK_EQUAL(cache_.tree().node_count(), 0u);
  }

  int64_t hits = 0;
  int64_t preemptions = 0;
  int64_t snapshot_hits = 0;
  int64_t rollbacks = 0;
  int64_t part_hits = 0;
  const BlockCache& cache() const { return cache_; }

 private:
  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  void begin() {
    Tokens tokens;
    if (!ended_.empty() && below(2) == 0) {  // a session continues, maybe from an earlier place
      tokens = ended_[static_cast<size_t>(below(static_cast<int>(ended_.size())))];
      tokens.resize(1 + static_cast<size_t>(below(static_cast<int>(tokens.size()))));
    }
    for (int i = 1 + below(20); i > 0; --i) tokens.push_back(below(2));
    tokens.resize(std::min<size_t>(tokens.size(), 60));
    const PrefixScope scope(static_cast<uint64_t>(below(2)), below(5) == 0 ? 1 : 0);
    admit(std::make_unique<Simulated>(scope, std::move(tokens)));
  }

  void fork() {
    if (running_.empty()) return;
    const Simulated& from = *running_[static_cast<size_t>(below(static_cast<int>(running_.size())))];
    admit(std::make_unique<Simulated>(from.scope, from.tokens));
  }

  void admit(std::unique_ptr<Simulated> sequence) {
    const auto count = static_cast<int>(sequence->tokens.size());
    const std::vector<int> marks = {below(count + 1)};
    if (below(6) == 0) {
      sequence->memory.begin(cache_, count, marks);
    } else {
      sequence->memory.match(cache_, sequence->key(), count - 1, count, marks);
    }
    const int cached = sequence->memory.cached();
    CHECK(cached % kBlockLen == 0 || cached == std::min(marks[0], count - 1));
    part_hits += cached % kBlockLen != 0;
    CHECK(cached < count);
    hits += cached > 0;
    snapshot_hits += cached > 0 && cache_.plan().group_of(MemoryKind::kState) >= 0;
    const bool has_room =
        running_.empty() || sequence->memory.missing_pages(cache_, count + 1) <= cache_.available_count();
    if (has_room) {
      running_.push_back(std::move(sequence));
    } else {
      sequence->memory.give_up(cache_, Keep::kContent);
    }
  }

  void end(Keep keep) {
    if (running_.empty()) return;
    const auto which = running_.begin() + below(static_cast<int>(running_.size()));
    ended_.push_back((*which)->tokens);
    (*which)->memory.give_up(cache_, keep);
    running_.erase(which);
  }

  // Some tokens of a sequence run, and maybe some that are only drafted; some of these are right.
  void step() {
    if (running_.empty()) return;
    const auto which = static_cast<size_t>(below(static_cast<int>(running_.size())));
    Simulated& sequence = *running_[which];
    SequenceMemory& memory = sequence.memory;
    const auto known = static_cast<int>(sequence.tokens.size());
    const int begin = memory.cached();
    int count = std::min(1 + below(12), known - begin);
    count = memory.next_stop(cache_, begin + count) - begin;
    CHECK(count > 0);
    const bool is_decoding = begin + count == known;
    int drafts = is_decoding ? below(4) : 0;
    drafts = memory.next_stop(cache_, begin + count + drafts) - begin - count;
    while (!memory.grow(cache_, begin + count)) {
      // Somebody gives everything up; whoever is alone has room.
      CHECK(running_.size() > 1);
      const size_t last = running_.size() - 1;
      const bool is_own = last == which;
      running_[last]->memory.give_up(cache_, Keep::kContent);
      running_.pop_back();
      ++preemptions;
      if (is_own) return;
    }
    if (!memory.grow(cache_, begin + count + drafts)) drafts = 0;
    drafts = std::max(0, std::min(drafts, memory.places(cache_) - begin - count));
    const bool has_state = cache_.plan().group_of(MemoryKind::kState) >= 0;
    if (has_state && (begin < sequence.prompt_len || (drafts > 0 && !memory.back_up(cache_)))) drafts = 0;
    CHECK_EQUAL(memory.has_backup(), has_state && drafts > 0);

    pages_.move(cache_.take_moves());
    Tokens run = sequence.tokens;
    const Tokens proposed = {below(2), below(2), below(2)};
    run.insert(run.end(), proposed.begin(), proposed.begin() + drafts);
    compute(sequence, run, begin, count + drafts);
    draft(sequence, begin + count);
    memory.advance(cache_, sequence.key(), count, Keep::kContent);
    if (!is_decoding) return;
    // The next token, and those that were drafted right.
    const int right = below(drafts + 1);
    sequence.tokens.insert(sequence.tokens.end(), proposed.begin(), proposed.begin() + right);
    if (has_state && right < drafts) {
      memory.roll_back(cache_);
      CHECK_EQUAL(memory.cached(), begin);
      ++rollbacks;
    } else {
      const int before = memory.drop_backup(cache_);
      memory.advance(cache_, sequence.key(), before + right, Keep::kContent);
    }
    sequence.tokens.push_back(below(2));
    memory.publish_drafts(cache_, sequence.key(), sequence.draft_rows);
    if (sequence.tokens.size() > 70) end_one(which);
  }

  void end_one(size_t which) {
    ended_.push_back(running_[which]->tokens);
    running_[which]->memory.give_up(cache_, Keep::kContent);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(which));
  }

  // Rows [begin, begin + count) of `run`, as a model computes them.
  void compute(const Simulated& sequence, const Tokens& run, int begin, int count) {
    for (const CacheGroup& group : cache_.plan().groups) {
      for (int page = 0; page < group.pages; ++page) {
        const std::vector<int32_t>& table = sequence.memory.tables().at(static_cast<size_t>(group.first_table + page));
        if (group.kind == MemoryKind::kState) {
          run_state(sequence, run, begin, count, pages_.at(table.at(0)));
        } else if (group.kind == MemoryKind::kPaged || group.kind == MemoryKind::kWindow) {
          attend(sequence, run, begin, count, group, table);
        }
      }
    }
  }

  void attend(const Simulated& sequence, const Tokens& run, int begin, int count, const CacheGroup& group,
              const std::vector<int32_t>& table) {
    const auto slot = [&](int position) -> uint64_t& {
      return pages_.at(table.at(static_cast<size_t>(position / kBlockLen))).slots[position % kBlockLen];
    };
    for (int position = begin; position < begin + count; ++position) {
      slot(position) = hash_of(sequence.scope, run, position + 1);
    }
    for (int position = begin; position < begin + count; ++position) {
      int first = group.kind == MemoryKind::kWindow ? std::max(0, position - group.window + 1) : 0;
      if (group.is_chunked) first = position - position % group.window;
      for (int seen = first; seen <= position; ++seen) {
        CHECK_EQUAL(slot(seen), hash_of(sequence.scope, run, seen + 1));
      }
    }
  }

  static void run_state(const Simulated& sequence, const Tokens& run, int begin, int count, Pages::Page& page) {
    if (begin > 0) CHECK_EQUAL(page.states.at(begin), hash_of(sequence.scope, run, begin));
    page.states = {{begin + count, hash_of(sequence.scope, run, begin + count)}};
  }

  // What drafts computes its rows too, now and then.
  void draft(Simulated& sequence, int end) {
    const int index = cache_.plan().group_of(MemoryKind::kDraft);
    if (index < 0 || below(2) == 0) return;
    const CacheGroup& group = cache_.group(index);
    const int found = sequence.memory.published_draft_rows(cache_);
    for (int page = 0; page < group.pages; ++page) {
      const std::vector<int32_t>& table = sequence.memory.tables().at(static_cast<size_t>(group.first_table + page));
      for (int position = 0; position < end; ++position) {
        uint64_t& slot = pages_.at(table.at(static_cast<size_t>(position / kBlockLen))).slots[position % kBlockLen];
        const uint64_t expected = hash_of(sequence.scope, sequence.tokens, position + 1) + 1;
        if (position < found) {
          CHECK_EQUAL(slot, expected);
        } else {
          slot = expected;
        }
      }
    }
    sequence.draft_rows = end;
  }

  void check() {
    cache_.check_invariants();
    std::vector<int32_t> referenced;
    for (const auto& sequence : running_) {
      sequence->memory.check_invariants(cache_);
      sequence->memory.add_blocks(referenced);
    }
    std::ranges::sort(referenced);
    referenced.erase(std::unique(referenced.begin(), referenced.end()), referenced.end());
    int pages = 0;
    for (const int32_t block : referenced) pages += cache_.pages_of(block);
    CHECK_EQUAL(pages, cache_.referenced_count());
    CHECK(cache_.snapshot_count() <= cache_.page_count() / 4);
  }

  std::mt19937 random_;
  BlockCache cache_;
  Pages pages_;
  std::vector<std::unique_ptr<Simulated>> running_;
  std::vector<Tokens> ended_;
};

// Some of all kinds of groups, with blocks of one page or several.
CachePlan some_plan(unsigned seed) {
  std::mt19937 random(seed);
  const auto pages = [&] { return 1 + static_cast<int>(random() % 3); };
  std::vector<CacheGroup> groups;
  const unsigned kinds = 1 + seed % 15;  // a bit each: paged, window, state, draft
  if ((kinds & 1) != 0) groups.push_back(small_group(MemoryKind::kPaged, kBlockLen, 0, pages()));
  if ((kinds & 2) != 0) {
    groups.push_back(small_group(MemoryKind::kWindow, kBlockLen, 1 + static_cast<int>(random() % 17), pages()));
  }
  if ((kinds & 2) != 0 && seed % 3 == 0) {
    groups.push_back(small_group(MemoryKind::kWindow, kBlockLen, 5 + static_cast<int>(random() % 30), pages()));
  }
  if ((kinds & 2) != 0 && seed % 4 == 1) {
    const int chunk = kBlockLen * (1 + static_cast<int>(random() % 5));
    groups.push_back(small_group(MemoryKind::kWindow, kBlockLen, chunk, pages()));
    groups.back().is_chunked = true;
  }
  if ((kinds & 4) != 0) groups.push_back(small_group(MemoryKind::kState, kBlockLen, 0, pages()));
  if ((kinds & 8) != 0) groups.push_back(small_group(MemoryKind::kDraft, kBlockLen, 0, pages()));
  CachePlan plan{kBlockLen, groups.front().piece_bytes, std::move(groups)};
  int table = 0;
  for (CacheGroup& group : plan.groups) {
    group.page_pieces = 1;
    group.pages = group.pieces;
    group.first_table = table;
    table += group.pages;
  }
  return plan;
}

}  // namespace

TEST(random_histories_of_all_groups_read_what_was_written) {
  int64_t hits = 0;
  int64_t preemptions = 0;
  int64_t snapshot_hits = 0;
  int64_t rollbacks = 0;
  int64_t part_hits = 0;
  int64_t swapped_in = 0;
  int64_t evictions = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    const CachePlan plan = some_plan(seed);
    // At least what one sequence of 80 tokens takes.
    const int pages = plan.pages_for(80, 20) + static_cast<int>(seed % 7) * 8;
    History history(seed, plan, {pages, seed % 3 == 0 ? 0 : static_cast<int>(seed % 40)});
    history.run(120);
    hits += history.hits;
    preemptions += history.preemptions;
    snapshot_hits += history.snapshot_hits;
    rollbacks += history.rollbacks;
    part_hits += history.part_hits;
    swapped_in += history.cache().swapped_in_count();
    evictions += history.cache().eviction_count();
  }
  CHECK(hits > 1000);
  CHECK(preemptions > 100);
  CHECK(snapshot_hits > 100);
  CHECK(rollbacks > 1000);
  CHECK(part_hits > 100);
  CHECK(swapped_in > 100);
  CHECK(evictions > 1000);
}

namespace {

// A sequence that runs all its tokens at once, but for the stops of its memory, and goes.
int run_whole(BlockCache& cache, const Tokens& tokens, const std::vector<int>& marks = {}, int response = 0) {
  SequenceMemory memory;
  const PrefixKey key{0, tokens};
  const auto prompt = static_cast<int>(tokens.size()) - response;
  memory.match(cache, key, prompt - 1, prompt, marks);
  const int cached = memory.cached();
  while (memory.cached() < static_cast<int>(tokens.size())) {
    const int end = memory.cached() < prompt ? prompt : memory.cached() + 1;
    const int count = memory.next_stop(cache, end) - memory.cached();
    CHECK(memory.grow(cache, memory.cached() + count));
    memory.advance(cache, key, count, Keep::kContent);
  }
  memory.give_up(cache, Keep::kContent);
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
  cache.limit_snapshots(3);
  CHECK_EQUAL(run_whole(cache, counted(10)), 0);
  for (int i = 0; i < 2; ++i) CHECK_EQUAL(run_whole(cache, counted(10)), 8);  // now it is shared
  for (int other = 1; other < 6; ++other) run_whole(cache, counted(10, 100 * other));
  CHECK_EQUAL(cache.snapshot_count(), 3);
  CHECK_EQUAL(run_whole(cache, counted(10)), 8);
  CHECK_EQUAL(run_whole(cache, counted(10, 100)), 0);  // the oldest of the others
  CHECK_EQUAL(run_whole(cache, counted(10, 500)), 8);
}

TEST(the_latest_snapshot_of_each_conversation_outlives_earlier_ones) {
  BlockCache cache(hybrid_plan(), {4000});
  const int conversations = 10;
  cache.limit_snapshots(conversations + 4);  // a turn makes four, one of them while it responds
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
  CHECK_EQUAL(cache.snapshot_count(), 2);  // at the ends of the prompt and of the response
  CHECK_EQUAL(run_whole(cache, counted(120)), 100);
}

TEST(content_goes_with_the_blocks_that_it_needs) {
  const CachePlan plan = plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kWindow, 4, 8)});
  BlockCache cache(plan, {22});
  run_whole(cache, counted(16));
  run_whole(cache, joined(counted(8), counted(8, 100)));  // uses the first two blocks again
  CHECK_EQUAL(cache.idle_count(), 4 + 2 + 4 + 2);
  cache.forget(cache.tree().find(cache.tree().find_root(0), {0, counted(4)}, 0));
  CHECK_EQUAL(cache.idle_count(), 0);
}

TEST(ten_thousand_conversations_leave_no_page_lost) {
  std::mt19937 random(1);
  BlockCache cache(hybrid_plan(), {300, 50});
  for (int i = 0; i < 10'000; ++i) {
    const int count = 5 + static_cast<int>(random() % 60);
    run_whole(cache, joined(counted(count, 1000 * static_cast<int>(random() % 12)), counted(5, i)), {count}, 3);
    CHECK(cache.snapshot_count() <= 300 / 4);
  }
  CHECK_EQUAL(cache.referenced_count(), 0);
  cache.forget_all();
  CHECK_EQUAL(cache.free_count(), 300);
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

// What something is refused with; empty: it is not.
template <class Function>
std::string refusal_of(const Function& function) {
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
    return refusal_of([&] { plan_cache(4, {small_group(MemoryKind::kPaged, 4), group}); });
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
    return refusal_of([&] { plan_cache(4, {small_group(MemoryKind::kPaged, 4), group}); });
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
  const int least = plan.pages_for(1, 16);
  CHECK_EQUAL(refusal_of([&] { plan.expect_a_sequence(least, 16); }), std::string());
  CHECK_EQUAL(refusal_of([&] { plan.expect_a_sequence(least - 1, 16); }),
              "not enough memory for the cache: the shortest sequence takes " + std::to_string(least) + " pages of " +
                  std::to_string(plan.page_bytes) + " bytes, and there are " + std::to_string(least - 1) +
                  "; cache group 1, of layer 1, takes " + std::to_string(plan.groups[1].pages) +
                  " of them; raise cache_max_entry_count or lower cache_block_seq_len");
}

}  // namespace turbomind::testing
