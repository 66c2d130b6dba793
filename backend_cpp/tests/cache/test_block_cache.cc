// The block cache: content, scopes, eviction order, invariants; and its parts alone.
#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "base/error.h"
#include "engine/cache/block_cache.h"
#include "tests/cache_plans.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

std::vector<int32_t> range(int count, int first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = first + i;
  return tokens;
}

// Allocates and publishes blocks for all full blocks of `tokens` that are not matched.
std::vector<int32_t> fill(BlockCache& cache, uint64_t scope, const std::vector<int32_t>& tokens) {
  std::vector<int32_t> blocks;
  match_chain(cache, {scope, tokens}, static_cast<int>(tokens.size()), blocks);
  for (int index = static_cast<int>(blocks.size()); (index + 1) * cache.block_len() <= static_cast<int>(tokens.size());
       ++index) {
    blocks.push_back(cache.allocate());
    publish(cache, {scope, tokens}, index, blocks);
  }
  return blocks;
}

}  // namespace

TEST(published_blocks_are_found_by_content_and_scope_alone) {
  BlockCache cache(small_plan(4), {8});
  std::vector<int32_t> first = fill(cache, 0, range(12));
  std::vector<int32_t> found;
  CHECK_EQUAL(match_chain(cache, {0, range(14)}, 13, found), 12);
  CHECK(found == first);
  std::vector<int32_t> none;
  CHECK_EQUAL(match_chain(cache, {7, range(14)}, 13, none), 0);
  std::vector<int32_t> other = range(12);
  other[5] = 99;  // the second block differs, so the third must not match although its tokens are equal
  std::vector<int32_t> part;
  CHECK_EQUAL(match_chain(cache, {0, other}, 12, part), 4);
  cache.release(part);
  cache.release(found);
  cache.release(first);
  cache.check_invariants();
  CHECK_EQUAL(cache.order().idle_pages(), 3);
}

TEST(colliding_hashes_never_serve_other_content) {
  BlockCache cache(small_plan(2), {8}, 0);
  std::vector<int32_t> first = fill(cache, 0, {1, 2, 3, 4});
  std::vector<int32_t> second = fill(cache, 0, {5, 6, 3, 4});  // its second block has the tokens, not the parent
  CHECK(first[1] != second[1]);
  std::vector<int32_t> found;
  CHECK_EQUAL(match_chain(cache, {9, {1, 2, 3, 4}}, 4, found), 0);
  CHECK_EQUAL(match_chain(cache, {0, {3, 4, 1, 2}}, 4, found), 0);
  CHECK_EQUAL(match_chain(cache, {0, {5, 6, 3, 4}}, 4, found), 4);
  CHECK(found == second);
  cache.check_invariants();
}

TEST(colliding_hashes_never_serve_another_image) {
  BlockCache cache(small_plan(4), {8}, 0);
  const std::vector<int32_t> tokens = range(8);
  const auto images = [](int begin, int count, uint8_t digest) {
    EmbeddingRange image;
    image.begin = begin;
    image.count = count;
    image.digest[0] = digest;
    return std::vector<EmbeddingRange>{image};
  };
  const std::vector<EmbeddingRange> shown = images(1, 6, 1);
  std::vector<int32_t> blocks = {cache.allocate(), cache.allocate()};
  for (int index = 0; index < 2; ++index) publish(cache, {0, tokens, shown}, index, blocks);
  const auto covered = [&](const std::vector<EmbeddingRange>& embeddings) {
    std::vector<int32_t> found;
    const int count = match_chain(cache, {0, tokens, embeddings}, 8, found);
    cache.release(found);
    return count;
  };
  CHECK_EQUAL(covered(shown), 8);
  CHECK_EQUAL(covered({}), 0);               // the tokens alone
  CHECK_EQUAL(covered(images(1, 6, 2)), 0);  // another image
  CHECK_EQUAL(covered(images(0, 6, 1)), 0);  // at another place
  CHECK_EQUAL(covered(images(1, 5, 1)), 0);  // a shorter one: its rows may have seen each other
  cache.release(blocks);
  cache.check_invariants();
}

TEST(the_least_recently_used_goes_first_and_the_end_of_a_chain_before_its_beginning) {
  BlockCache cache(small_plan(2), {4});
  std::vector<int32_t> old = fill(cache, 0, range(4, 0));
  cache.release(old);
  std::vector<int32_t> young = fill(cache, 0, range(4, 50));
  cache.release(young);
  CHECK(cache.allocate() >= 0);  // takes the end of the old chain
  std::vector<int32_t> found;
  CHECK_EQUAL(match_chain(cache, {0, range(4, 0)}, 4, found), 2);
  CHECK_EQUAL(match_chain(cache, {0, range(4, 50)}, 4, found), 4);
  CHECK_EQUAL(cache.contents().counts().evictions, 1);
  cache.check_invariants();
}

TEST(equal_content_is_kept_once) {
  BlockCache cache(small_plan(2), {4});
  std::vector<int32_t> a = {cache.allocate()};
  std::vector<int32_t> b = {cache.allocate()};
  publish(cache, {0, range(2)}, 0, a);
  publish(cache, {0, range(2)}, 0, b);
  CHECK(a == b);
  CHECK_EQUAL(cache.pool().referenced_count(), 1);
  cache.release(a);
  CHECK_EQUAL(cache.order().idle_pages(), 0);
  cache.release(b);
  CHECK_EQUAL(cache.order().idle_pages(), 1);
  cache.check_invariants();
}

TEST(a_block_goes_back_once) {
  BlockCache cache(small_plan(4), {3});
  std::vector<int32_t> taken = {cache.allocate(), cache.allocate(), cache.allocate()};
  CHECK_EQUAL(cache.allocate(), -1);
  std::vector<int32_t> copy = taken;
  cache.release(taken);
  CHECK_EQUAL(cache.pool().free_count(), 3);
  bool rejected = false;
  try {
    cache.release(copy);
  } catch (const Error&) {
    rejected = true;
  }
  CHECK(rejected);
}

TEST(what_leaves_for_the_host_comes_back_whole) {
  BlockCache cache(small_plan(2), {2, 3});
  std::vector<int32_t> old = fill(cache, 0, range(4));
  const std::vector<int32_t> unchanged = old;
  cache.release(old);
  std::vector<int32_t> young = fill(cache, 0, range(4, 50));  // takes both blocks
  CHECK_EQUAL(cache.pool().host_used_count(), 2);
  CHECK_EQUAL(cache.contents().counts().evictions, 0);
  std::vector<int32_t> found;
  CHECK_EQUAL(match_chain(cache, {0, range(4)}, 4, found), 0);  // every block is referenced
  cache.release(young);
  cache.pool().take_moves();
  CHECK_EQUAL(match_chain(cache, {0, range(4)}, 4, found), 4);
  CHECK_EQUAL(cache.contents().counts().swapped_in, 2);
  CHECK_EQUAL(cache.pool().host_used_count(), 2);  // the young ones, now
  cache.check_invariants();
  const std::vector<PageMove> moves = cache.pool().take_moves();
  CHECK_EQUAL(moves.size(), 4u);
  for (size_t i = 0; i < moves.size(); i += 2) {  // a place is left before it is filled
    CHECK(moves[i].to >= 2);
    CHECK(moves[i + 1].from >= 2);
    CHECK_EQUAL(moves[i].from, moves[i + 1].to);
  }
  CHECK(cache.pool().take_moves().empty());
}

TEST(the_host_gives_up_what_was_used_longest_ago) {
  BlockCache cache(small_plan(2), {1, 2});
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> blocks = fill(cache, 0, range(2, 10 * i));
    cache.release(blocks);
  }
  CHECK_EQUAL(cache.contents().counts().evictions, 1);
  std::vector<int32_t> found;
  CHECK_EQUAL(match_chain(cache, {0, range(2, 0)}, 2, found), 0);
  CHECK_EQUAL(match_chain(cache, {0, range(2, 10)}, 2, found), 2);
  cache.check_invariants();
  cache.release(found);
  cache.contents().clear();
  CHECK_EQUAL(cache.pool().host_used_count(), 0);
  CHECK_EQUAL(cache.pool().free_count(), 1);
  cache.check_invariants();
}

TEST(what_was_computed_again_takes_the_place_of_the_host_s) {
  BlockCache cache(small_plan(2), {2, 2});
  std::vector<int32_t> first = fill(cache, 0, range(2));
  cache.release(first);
  std::vector<int32_t> both = {cache.allocate(), cache.allocate()};
  CHECK_EQUAL(cache.pool().host_used_count(), 1);
  publish(cache, {0, range(2)}, 0, both);
  CHECK_EQUAL(cache.pool().host_used_count(), 0);
  cache.check_invariants();
  std::vector<int32_t> found;
  CHECK_EQUAL(match_chain(cache, {0, range(2)}, 2, found), 2);
  CHECK_EQUAL(found[0], both[0]);
}

// Content of each block after its moves is what the cache says of it.
TEST(moved_blocks_hold_what_is_found_in_them) {
  std::mt19937 random(7);
  for (int history = 0; history < 200; ++history) {
    const int host_blocks = 1 + history % 9;
    BlockCache cache(small_plan(2), {6, host_blocks});
    std::vector<std::vector<int32_t>> stored(static_cast<size_t>(6 + host_blocks));
    int64_t came_back = 0;
    for (int event = 0; event < 60; ++event) {
      std::vector<int32_t> tokens;
      for (unsigned i = 0; i < 2 + random() % 9; ++i) tokens.push_back(static_cast<int32_t>(random() % 3));
      std::vector<int32_t> blocks;
      const int covered = match_chain(cache, {0, tokens}, static_cast<int>(tokens.size()), blocks);
      std::vector<int32_t> fresh;
      while ((blocks.size() + fresh.size() + 1) * 2 <= tokens.size()) fresh.push_back(cache.allocate());
      for (const auto [from, to] : cache.pool().take_moves()) {
        stored[static_cast<size_t>(to)] = std::exchange(stored[static_cast<size_t>(from)], {});
      }
      for (int index = 0; index < covered / 2; ++index) {
        const std::vector<int32_t> all(tokens.begin(), tokens.begin() + 2 * (index + 1));
        CHECK(stored[static_cast<size_t>(blocks[static_cast<size_t>(index)])] == all);
      }
      for (const int32_t block : fresh) {
        blocks.push_back(block);
        stored[static_cast<size_t>(block)].assign(tokens.begin(), tokens.begin() + 2 * std::ssize(blocks));
        publish(cache, {0, tokens}, static_cast<int>(blocks.size()) - 1, blocks);
      }
      cache.check_invariants();
      cache.release(blocks);
      cache.check_invariants();
      came_back = cache.contents().counts().swapped_in;
    }
    CHECK(came_back > 0);
  }
}

TEST(random_histories_of_the_block_cache_keep_its_invariants) {
  std::mt19937 random(3);
  for (int history = 0; history < 200; ++history) {
    BlockCache cache(small_plan(2), {12, history % 3 * 4});
    std::vector<std::vector<int32_t>> tables;
    for (int event = 0; event < 120; ++event) {
      switch (random() % 4) {
        case 0:
        case 1: {  // a sequence arrives with few different beginnings, so that contents meet
          std::vector<int32_t> tokens;
          for (unsigned i = 0; i < 2 + random() % 8; ++i) tokens.push_back(static_cast<int32_t>(random() % 2));
          const uint64_t scope = random() % 3;
          std::vector<int32_t> blocks;
          match_chain(cache, {scope, tokens}, static_cast<int>(tokens.size()), blocks);
          while ((blocks.size() + 1) * 2 <= tokens.size()) {
            const int32_t block = cache.allocate();
            if (block < 0) break;
            blocks.push_back(block);
            publish(cache, {scope, tokens}, static_cast<int>(blocks.size()) - 1, blocks);
            cache.check_invariants();
          }
          tables.push_back(std::move(blocks));
          break;
        }
        default:
          if (tables.empty()) break;
          const size_t which = random() % tables.size();
          if (random() % 2 == 0) {
            cache.release(tables[which]);
          } else {
            cache.release(tables[which], Keep::kNothing);
          }
          tables.erase(tables.begin() + static_cast<ptrdiff_t>(which));
      }
      cache.check_invariants();
      CHECK_EQUAL(cache.pool().free_count() + cache.order().idle_pages() + cache.pool().referenced_count(), 12);
    }
    for (auto& table : tables) cache.release(table);
    CHECK_EQUAL(cache.pool().referenced_count(), 0);
    cache.check_invariants();
  }
}

// ---- the parts alone ----

TEST(the_pool_hands_out_each_page_once_and_counts_references) {
  const CachePlan plan = plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kWindow, 4, 8, 3)});
  CHECK(plan.groups[1].pages > plan.groups[0].pages);
  struct Made {
    int32_t block;
    bool in_host;
    int references;
  };
  std::mt19937 random(5);
  BlockPool pool(plan, {12, 7});
  std::vector<Made> made;
  for (int event = 0; event < 3000; ++event) {
    int used[2] = {0, 0};
    int referenced = 0;
    std::set<int32_t> pages;
    for (const Made& one : made) {
      for (const int32_t page : pool.pages(one.block)) {
        CHECK(pages.insert(page).second && pool.is_of_host(page) == one.in_host);
      }
      used[one.in_host] += pool.pages_of(one.block);
      if (one.references > 0) referenced += pool.pages_of(one.block);
    }
    CHECK_EQUAL(pool.free_count(), 12 - used[0]);
    CHECK_EQUAL(pool.host_used_count(), used[1]);
    CHECK_EQUAL(pool.referenced_count(), referenced);
    pool.check_invariants();
    const int group = static_cast<int>(random() % 2);
    const bool in_host = random() % 2 == 0;
    if (made.empty() || random() % 3 == 0) {
      const int32_t block = pool.make(group, in_host);
      CHECK((block == kNoBlock) == ((in_host ? 7 : 12) - used[in_host] < pool.group(group).pages));
      if (block != kNoBlock) made.push_back({block, in_host, 0});
      continue;
    }
    Made& one = made[random() % made.size()];
    if (!one.in_host && random() % 2 == 0) {
      pool.reference(one.block);
      ++one.references;
    } else if (one.references > 0) {
      CHECK(pool.drop(one.block) == (--one.references == 0));
    } else {
      CHECK(error_of([&] { pool.drop(one.block); }) == ErrorCode::kInternal);
      pool.free(one.block);
      std::swap(one, made.back());
      made.pop_back();
    }
  }
}

TEST(contents_are_evicted_by_place_and_last_use) {
  using Queue = EvictionOrder::Queue;
  std::mt19937 random(6);
  BlockPool pool(small_plan(4), {20, 6});
  EvictionOrder order(pool);
  while (pool.make(0) != kNoBlock || pool.make(0, true) != kNoBlock) continue;
  struct Idle {
    int32_t block;
    Queue queue;
    int uses;
  };
  std::vector<Idle> idle;  // by last use
  const auto is_snapshot = [](Queue queue) {
    return queue == Queue::kPassedSnapshot || queue == Queue::kLatestSnapshot || queue == Queue::kSharedSnapshot;
  };
  const auto first = [&](auto matches) {
    const auto found = std::ranges::find_if(idle, matches);
    return found == idle.end() ? kNoBlock : found->block;
  };
  const auto first_at = [&](Queue queue) {
    return first([=](const Idle& idle_block) { return idle_block.queue == queue; });
  };
  const auto first_of = [&](std::initializer_list<int32_t> blocks) {
    const auto* found = std::ranges::find_if(blocks, [](int32_t block) { return block != kNoBlock; });
    return found == blocks.end() ? kNoBlock : *found;
  };
  for (int event = 0; event < 5000; ++event) {
    const auto block = static_cast<int32_t>(random() % 26);
    const auto known = std::ranges::find(idle, block, &Idle::block);
    CHECK(order.has(block) == (known != idle.end()));
    Idle moved{block, block < 20 ? static_cast<Queue>(1 + random() % 5) : Queue::kHost, 0};
    if (known == idle.end()) {
      order.put(block, moved.queue);
      idle.push_back(moved);
    } else {
      moved = *known;
      const bool is_pinned = random() % 2 == 0;
      bool is_moved = true;
      bool stays = true;
      switch (random() % 5) {
        case 0:
          order.remove(block);
          stays = false;
          break;
        case 1:
          order.touch(block, is_pinned);
          if (is_pinned && is_snapshot(moved.queue)) moved.queue = Queue::kSharedSnapshot;
          if (is_pinned && moved.queue == Queue::kUntilNeeded) moved.queue = Queue::kNeededLast;
          break;
        case 2:
          order.record_use(block);
          ++moved.uses;
          if (is_snapshot(moved.queue)) moved.queue = moved.uses > 1 ? Queue::kSharedSnapshot : Queue::kLatestSnapshot;
          break;
        case 3:
          order.pass(block);
          is_moved = moved.queue == Queue::kLatestSnapshot;
          if (is_moved) moved.queue = Queue::kPassedSnapshot;
          break;
        case 4:
          is_moved = order.keep(block);
          CHECK(is_moved == (moved.queue == Queue::kUntilNeeded));
          if (is_moved) moved.queue = Queue::kNeededLast;
          break;
      }
      if (is_moved) idle.erase(known);
      if (is_moved && stays) idle.push_back(moved);
    }
    order.check_invariants();
    CHECK_EQUAL(order.next(), first_of({first_at(Queue::kUntilNeeded), first([](const Idle& idle_block) {
                                          return idle_block.queue != Queue::kHost;
                                        })}));
    CHECK_EQUAL(order.next_snapshot(), first_of({first_at(Queue::kPassedSnapshot), first_at(Queue::kLatestSnapshot),
                                                 first_at(Queue::kSharedSnapshot)}));
    CHECK_EQUAL(order.next_of_host(), first_at(Queue::kHost));
    CHECK_EQUAL(order.snapshot_pages(),
                std::ranges::count_if(idle, [&](const Idle& idle_block) { return is_snapshot(idle_block.queue); }));
  }
}

TEST(observers_hear_of_contents_from_their_first_to_their_last) {
  struct Recorder final : CacheObserver {
    explicit Recorder(const PrefixTree& of) : tree(of) {}
    void stored(uint64_t content, uint64_t, const PrefixKey&, int) override { record("stored", content); }
    void moved(uint64_t content, std::span<const int32_t>, CacheTier) override { record("moved", content); }
    void removed(uint64_t content) override { record("removed", content); }
    void cleared() override { heard.push_back("cleared"); }
    void idle(NodeId node, int) override { record("idle", tree.number(node)); }
    void leaving(NodeId node, int) override { record("leaving", tree.number(node)); }
    void record(const std::string& what, uint64_t content) { heard.push_back(what + " " + std::to_string(content)); }
    const PrefixTree& tree;
    std::vector<std::string> heard;
  };
  BlockCache cache(small_plan(2), {2, 1});
  Recorder recorder(cache.tree());
  cache.observe(recorder);
  std::vector<int32_t> blocks = fill(cache, 0, range(4));  // contents 2 and 3; 1 is the root
  cache.release(blocks);
  blocks = {cache.allocate(), cache.allocate()};
  cache.release(blocks);
  cache.contents().check_invariants();
  cache.contents().clear();
  CHECK(recorder.heard == std::vector<std::string>({"stored 2", "stored 3", "idle 3", "idle 2", "moved 3", "leaving 3",
                                                    "removed 3", "moved 2", "removed 2", "cleared"}));
}

TEST(rolling_snapshots_go_and_shared_ones_go_last) {
  const CachePlan plan = plan_cache(4, {small_group(MemoryKind::kPaged, 4), small_group(MemoryKind::kState, 4)});
  BlockCache cache(plan, {40});
  Snapshots& snapshots = cache.snapshots();
  snapshots.limits.pages = 2 * plan.groups[1].pages;
  const std::vector<int32_t> tokens = range(16);
  std::vector<NodeId> nodes = {cache.tree().get_root(0)};
  for (int index = 0; index < 4; ++index) {
    nodes.push_back(cache.tree().get(nodes.back(), {0, tokens}, index));
    cache.tree().ref(nodes.back());
  }
  int32_t state = cache.allocate(1);
  const auto is_there = [&](int index) { return cache.stored(nodes[static_cast<size_t>(index)], 1) != kNoBlock; };
  CHECK(snapshots.make(nodes[1], state, true) && snapshots.make(nodes[2], state, true));
  snapshots.commit(nodes[2], 1);
  for (const int index : {1, 2}) snapshots.clear_rolling(nodes[static_cast<size_t>(index)], 1);
  CHECK(!is_there(1) && is_there(2));
  for (int use = 0; use < 2; ++use) snapshots.use_copy(cache.stored(nodes[2], 1), state);
  CHECK(snapshots.make(nodes[3], state) && snapshots.make(nodes[4], state));
  CHECK(is_there(2) && !is_there(3) && is_there(4));
  snapshots.limits.pages = plan.groups[1].pages - 1;
  CHECK(!snapshots.make(nodes[1], state));
  cache.release(state, Keep::kNothing);
  cache.check_invariants();
}

}  // namespace turbomind::testing
