// The block cache: content, scopes, eviction order, invariants.
#include <random>

#include "base/error.h"
#include "engine/schedule/block_cache.h"
#include "tests/cache_plans.h"
#include "tests/check.h"

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
  cache.match({scope, tokens}, static_cast<int>(tokens.size()), blocks);
  for (int index = static_cast<int>(blocks.size()); (index + 1) * cache.block_len() <= static_cast<int>(tokens.size());
       ++index) {
    blocks.push_back(cache.allocate());
    cache.publish({scope, tokens}, index, blocks);
  }
  return blocks;
}

}  // namespace

TEST(published_blocks_are_found_by_content_and_scope_alone) {
  BlockCache cache(small_plan(4), {8});
  std::vector<int32_t> first = fill(cache, 0, range(12));
  std::vector<int32_t> found;
  CHECK_EQUAL(cache.match({0, range(14)}, 13, found), 12);
  CHECK(found == first);
  std::vector<int32_t> none;
  CHECK_EQUAL(cache.match({7, range(14)}, 13, none), 0);
  std::vector<int32_t> other = range(12);
  other[5] = 99;  // the second block differs, so the third must not match although its tokens are equal
  std::vector<int32_t> part;
  CHECK_EQUAL(cache.match({0, other}, 12, part), 4);
  cache.release(part);
  cache.release(found);
  cache.release(first);
  cache.check_invariants();
  CHECK_EQUAL(cache.idle_count(), 3);
}

TEST(colliding_hashes_never_serve_other_content) {
  BlockCache cache(small_plan(2), {8}, 0);
  std::vector<int32_t> first = fill(cache, 0, {1, 2, 3, 4});
  std::vector<int32_t> second = fill(cache, 0, {5, 6, 3, 4});  // its second block has the tokens, not the parent
  CHECK(first[1] != second[1]);
  std::vector<int32_t> found;
  CHECK_EQUAL(cache.match({9, {1, 2, 3, 4}}, 4, found), 0);
  CHECK_EQUAL(cache.match({0, {3, 4, 1, 2}}, 4, found), 0);
  CHECK_EQUAL(cache.match({0, {5, 6, 3, 4}}, 4, found), 4);
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
  for (int index = 0; index < 2; ++index) cache.publish({0, tokens, shown}, index, blocks);
  const auto covered = [&](const std::vector<EmbeddingRange>& embeddings) {
    std::vector<int32_t> found;
    const int count = cache.match({0, tokens, embeddings}, 8, found);
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
  CHECK_EQUAL(cache.match({0, range(4, 0)}, 4, found), 2);
  CHECK_EQUAL(cache.match({0, range(4, 50)}, 4, found), 4);
  CHECK_EQUAL(cache.eviction_count(), 1);
  cache.check_invariants();
}

TEST(equal_content_is_kept_once) {
  BlockCache cache(small_plan(2), {4});
  std::vector<int32_t> a = {cache.allocate()};
  std::vector<int32_t> b = {cache.allocate()};
  cache.publish({0, range(2)}, 0, a);
  cache.publish({0, range(2)}, 0, b);
  CHECK(a == b);
  CHECK_EQUAL(cache.referenced_count(), 1);
  cache.release(a);
  CHECK_EQUAL(cache.idle_count(), 0);
  cache.release(b);
  CHECK_EQUAL(cache.idle_count(), 1);
  cache.check_invariants();
}

TEST(a_block_goes_back_once) {
  BlockCache cache(small_plan(4), {3});
  std::vector<int32_t> taken = {cache.allocate(), cache.allocate(), cache.allocate()};
  CHECK_EQUAL(cache.allocate(), -1);
  std::vector<int32_t> copy = taken;
  cache.release(taken);
  CHECK_EQUAL(cache.free_count(), 3);
  bool refused = false;
  try {
    cache.release(copy);
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(what_leaves_for_the_host_comes_back_whole) {
  BlockCache cache(small_plan(2), {2, 3});
  std::vector<int32_t> old = fill(cache, 0, range(4));
  const std::vector<int32_t> places = old;
  cache.release(old);
  std::vector<int32_t> young = fill(cache, 0, range(4, 50));  // takes both blocks
  CHECK_EQUAL(cache.host_used_count(), 2);
  CHECK_EQUAL(cache.eviction_count(), 0);
  std::vector<int32_t> found;
  CHECK_EQUAL(cache.match({0, range(4)}, 4, found), 0);  // every block is referenced
  cache.release(young);
  cache.take_moves();
  CHECK_EQUAL(cache.match({0, range(4)}, 4, found), 4);
  CHECK_EQUAL(cache.swapped_in_count(), 2);
  CHECK_EQUAL(cache.host_used_count(), 2);  // the young ones, now
  cache.check_invariants();
  const std::vector<PageMove> moves = cache.take_moves();
  CHECK_EQUAL(moves.size(), 4u);
  for (size_t i = 0; i < moves.size(); i += 2) {  // a place is left before it is filled
    CHECK(moves[i].to >= 2);
    CHECK(moves[i + 1].from >= 2);
    CHECK_EQUAL(moves[i].from, moves[i + 1].to);
  }
  CHECK(cache.take_moves().empty());
}

TEST(the_host_gives_up_what_was_used_longest_ago) {
  BlockCache cache(small_plan(2), {1, 2});
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> blocks = fill(cache, 0, range(2, 10 * i));
    cache.release(blocks);
  }
  CHECK_EQUAL(cache.eviction_count(), 1);
  std::vector<int32_t> found;
  CHECK_EQUAL(cache.match({0, range(2, 0)}, 2, found), 0);
  CHECK_EQUAL(cache.match({0, range(2, 10)}, 2, found), 2);
  cache.check_invariants();
  cache.release(found);
  cache.forget_all();
  CHECK_EQUAL(cache.host_used_count(), 0);
  CHECK_EQUAL(cache.free_count(), 1);
  cache.check_invariants();
}

TEST(what_was_computed_again_takes_the_place_of_the_host_s) {
  BlockCache cache(small_plan(2), {2, 2});
  std::vector<int32_t> first = fill(cache, 0, range(2));
  cache.release(first);
  std::vector<int32_t> both = {cache.allocate(), cache.allocate()};
  CHECK_EQUAL(cache.host_used_count(), 1);
  cache.publish({0, range(2)}, 0, both);
  CHECK_EQUAL(cache.host_used_count(), 0);
  cache.check_invariants();
  std::vector<int32_t> found;
  CHECK_EQUAL(cache.match({0, range(2)}, 2, found), 2);
  CHECK_EQUAL(found[0], both[0]);
}

// What each block holds after its moves is what the cache says of it.
TEST(moved_blocks_hold_what_is_found_in_them) {
  std::mt19937 random(7);
  for (int history = 0; history < 200; ++history) {
    const int host_blocks = 1 + history % 9;
    BlockCache cache(small_plan(2), {6, host_blocks});
    std::vector<std::vector<int32_t>> held(static_cast<size_t>(6 + host_blocks));
    int64_t came_back = 0;
    for (int event = 0; event < 60; ++event) {
      std::vector<int32_t> tokens;
      for (unsigned i = 0; i < 2 + random() % 9; ++i) tokens.push_back(static_cast<int32_t>(random() % 3));
      std::vector<int32_t> blocks;
      const int covered = cache.match({0, tokens}, static_cast<int>(tokens.size()), blocks);
      std::vector<int32_t> fresh;
      while ((blocks.size() + fresh.size() + 1) * 2 <= tokens.size()) fresh.push_back(cache.allocate());
      for (const auto [from, to] : cache.take_moves()) {
        held[static_cast<size_t>(to)] = std::exchange(held[static_cast<size_t>(from)], {});
      }
      for (int index = 0; index < covered / 2; ++index) {
        const std::vector<int32_t> all(tokens.begin(), tokens.begin() + 2 * (index + 1));
        CHECK(held[static_cast<size_t>(blocks[static_cast<size_t>(index)])] == all);
      }
      for (const int32_t block : fresh) {
        blocks.push_back(block);
        held[static_cast<size_t>(block)].assign(tokens.begin(), tokens.begin() + 2 * std::ssize(blocks));
        cache.publish({0, tokens}, static_cast<int>(blocks.size()) - 1, blocks);
      }
      cache.check_invariants();
      cache.release(blocks);
      cache.check_invariants();
      came_back = cache.swapped_in_count();
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
          cache.match({scope, tokens}, static_cast<int>(tokens.size()), blocks);
          while ((blocks.size() + 1) * 2 <= tokens.size()) {
            const int32_t block = cache.allocate();
            if (block < 0) break;
            blocks.push_back(block);
            cache.publish({scope, tokens}, static_cast<int>(blocks.size()) - 1, blocks);
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
      CHECK_EQUAL(cache.free_count() + cache.idle_count() + cache.referenced_count(), 12);
    }
    for (auto& table : tables) cache.release(table);
    CHECK_EQUAL(cache.referenced_count(), 0);
    cache.check_invariants();
  }
}

}  // namespace turbomind::testing
