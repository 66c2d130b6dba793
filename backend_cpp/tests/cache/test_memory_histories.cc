// Random histories of sequences that hold memory in cache groups of all kinds (of latents as of other paged ones),
// compared with a simple simulated memory: what is read must have been written by whoever had the same content.
#include <map>
#include <random>

#include "engine/cache/image_blocks.h"
#include "engine/cache/sequence_memory.h"
#include "tests/cache/images.h"
#include "tests/cache_plans.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr int kBlockLen = 4;
constexpr size_t kMaxImages = 2;    // of a sequence
constexpr int kMaxImageBlocks = 6;  // of both

using Tokens = std::vector<int32_t>;

using Images = std::vector<EmbeddingRange>;

// Tokens, and the images that those from theirs on look at.
struct Content {
  Tokens tokens;
  Images images;

  // The first `count` tokens.
  Content beginning(size_t count) const {
    Content some{{tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count)}, images};
    std::erase_if(some.images, [&](const EmbeddingRange& image) { return image.begin >= static_cast<int>(count); });
    return some;
  }
};

uint64_t mixed(uint64_t hash, uint64_t value) {
  return (hash ^ (value + 1)) * 1099511628211ull;
}

// Content after the first `count` of `tokens`, with a sequence's images, in a scope.
uint64_t hash_of(const PrefixScope& scope, const Tokens& tokens, const Images& images, int count) {
  uint64_t hash = 1469598103934665603ull ^ (scope.cache_namespace * 31 + static_cast<uint64_t>(scope.variant));
  auto image = images.begin();
  for (int i = 0; i < count; ++i) {
    hash = mixed(hash, static_cast<uint64_t>(tokens[static_cast<size_t>(i)]));
    if (image != images.end() && image->begin == i) hash = mixed(hash, 1000 + (image++)->digest[0]);
  }
  return hash;
}

// Row `row` of images that are looked at together.
uint64_t hash_of(const PrefixScope& scope, const ImageGroup& images, int row) {
  float number = 0;
  images.read(row, &number);
  return mixed(mixed(scope.cache_namespace, 7), static_cast<uint64_t>(number));
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
  Simulated(PrefixScope of, const Content& content, int rows_of_block)
      : scope(of),
        tokens(content.tokens),
        images(content.images),
        cross_images(group_images(images, rows_of_block, kBlockLen)),
        prompt_len(static_cast<int>(tokens.size())),
        image_blocks(cross_images) {}

  PrefixKey key() const { return {scope, tokens, images}; }
  void release(BlockCache& cache, Keep keep) {
    memory.release(cache, key(), keep);
    image_blocks.release(cache, keep);
  }

  PrefixScope scope;
  Tokens tokens;
  Images images;
  std::vector<ImageGroup> cross_images;
  int prompt_len;
  SequenceMemory memory;
  ImageBlocks image_blocks;
  int draft_rows = 0;
};

// How often what happened.
struct Counts {
  int64_t hits = 0;
  int64_t session_hits = 0;
  int64_t fork_hits = 0;
  int64_t image_hits = 0;
  int64_t preemptions = 0;
  int64_t snapshot_hits = 0;
  int64_t rollbacks = 0;
  int64_t part_hits = 0;
  int64_t copied_hits = 0;
};

constexpr int64_t Counts::* kCounts[] = {&Counts::hits,       &Counts::session_hits, &Counts::fork_hits,
                                         &Counts::image_hits, &Counts::preemptions,  &Counts::snapshot_hits,
                                         &Counts::rollbacks,  &Counts::part_hits,    &Counts::copied_hits};

class History {
 public:
  History(unsigned seed, const CachePlan& plan, const CacheSize& size)
      : random_(seed), cache_(plan, size), pages_(size) {
    cache_.snapshots().limits.interval = seed % 2 == 0 ? 2 * kBlockLen : 0;
    cache_.snapshots().limits.min_copied = 1 + static_cast<int>(seed % 4);
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
          if (below(6) == 0) cache_.contents().evict_namespace(static_cast<uint64_t>(below(2)));
          break;
        default:
          step();
      }
      check();
    }
    while (!running_.empty()) end(Keep::kContent);
    check();
    CHECK_EQUAL(cache_.pool().referenced_count(), 0);
    cache_.contents().clear();
    CHECK_EQUAL(cache_.pool().free_count(), cache_.pool().page_count());
    CHECK_EQUAL(cache_.tree().node_count(), 0u);
  }

  Counts counts;
  const BlockCache& cache() const { return cache_; }

 private:
  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  std::unique_ptr<Simulated> simulated(const PrefixScope& scope, const Content& content) const {
    const int cross = cache_.plan().group_of(MemoryKind::kCross);
    return std::make_unique<Simulated>(scope, content, cross < 0 ? 1 : cache_.group(cross).block_len);
  }

  void begin() {
    Content content;
    const bool is_of_session = !ended_.empty() && below(2) == 0;
    if (is_of_session) {  // it continues, maybe from an earlier place
      const Content& past = ended_[static_cast<size_t>(below(static_cast<int>(ended_.size())))];
      content = past.beginning(1 + static_cast<size_t>(below(static_cast<int>(past.tokens.size()))));
    }
    const bool shows_image = cache_.plan().group_of(MemoryKind::kCross) >= 0;
    for (int i = 1 + below(20); i > 0 && content.tokens.size() < 60; --i) {
      if (shows_image && below(12) == 0 && content.images.size() < kMaxImages) {
        const int number = 1 + below(3);
        content.images.push_back(image_at(static_cast<int>(content.tokens.size()), 100 * number, 3 * number));
      }
      content.tokens.push_back(below(2));
    }
    const PrefixScope scope(static_cast<uint64_t>(below(2)), below(5) == 0 ? 1 : 0);
    counts.session_hits += admit(simulated(scope, content)) && is_of_session;
  }

  void fork() {
    if (running_.empty()) return;
    const Simulated& from = *running_[static_cast<size_t>(below(static_cast<int>(running_.size())))];
    counts.fork_hits += admit(simulated(from.scope, {from.tokens, from.images}));
  }

  // Returns whether it found anything.
  bool admit(std::unique_ptr<Simulated> sequence) {
    const auto count = static_cast<int>(sequence->tokens.size());
    const std::vector<int> branch_points = {below(count + 1)};
    if (below(6) == 0) {
      sequence->memory.begin(cache_, count, branch_points);
    } else {
      sequence->memory.match(cache_, sequence->key(), count - 1, count, branch_points);
    }
    const int cached = sequence->memory.cached();
    sequence->image_blocks.match(cache_, sequence->key(), cached);
    const bool has_state = cache_.plan().group_of(MemoryKind::kState) >= 0;
    CHECK(cached % kBlockLen == 0 || !has_state || cached == std::min(branch_points[0], count - 1));
    counts.part_hits += has_state && cached % kBlockLen != 0;
    counts.copied_hits += !has_state && cached % kBlockLen != 0;
    CHECK(cached < count);
    counts.hits += cached > 0;
    counts.snapshot_hits += has_state && cached > 0;
    counts.image_hits += sequence->image_blocks.has_blocks();
    const int missing =
        sequence->memory.missing_pages(cache_, count + 1) + sequence->image_blocks.missing_pages(cache_);
    if (running_.empty() || missing <= cache_.pool().available_count()) {
      running_.push_back(std::move(sequence));
    } else {
      sequence->release(cache_, Keep::kContent);
    }
    return cached > 0;
  }

  void end(Keep keep) {
    if (running_.empty()) return;
    end_one(static_cast<size_t>(below(static_cast<int>(running_.size()))), keep);
  }

  void end_one(size_t which, Keep keep) {
    ended_.push_back({running_[which]->tokens, running_[which]->images});
    running_[which]->release(cache_, keep);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(which));
  }

  // Somebody else gives everything up; whoever is alone has room. False: it was sequence number `which` itself.
  bool make_room(size_t which) {
    CHECK(running_.size() > 1);
    const bool is_same = running_.size() - 1 == which;
    running_.back()->release(cache_, Keep::kContent);
    running_.pop_back();
    ++counts.preemptions;
    return !is_same;
  }

  // Plans to write rows of the images that the next `count` tokens look at. Returns how many of these can run then;
  // negative: the sequence was preempted.
  int plan_images(size_t which, int count) {
    const Simulated& sequence = *running_[which];
    const int begin = sequence.memory.cached();
    for (ImageBlocks::Entry* entry : running_[which]->image_blocks.unwritten(begin, begin + count)) {
      while (!ImageBlocks::grow(cache_, *entry)) {
        if (!make_room(which)) return -1;
      }
      const int left = entry->group->rows() - entry->written;
      entry->planned = std::min(left, 1 + below(12));
      if (entry->planned < left) return std::max(0, entry->group->begin() - begin);
    }
    return count;
  }

  void write_images(Simulated& sequence) {
    std::vector<EncoderKvWrite> kv_writes;
    sequence.image_blocks.add_kv_writes(kv_writes);
    for (const EncoderKvWrite& write : kv_writes) {
      for (int row = write.first; row < write.first + write.count; ++row) {
        for (const std::vector<int32_t>& table : *write.tables) {
          image_slot(table, row) = hash_of(sequence.scope, *write.group, row);
        }
      }
    }
    sequence.image_blocks.commit(cache_, sequence.key());
  }

  uint64_t& image_slot(const std::vector<int32_t>& table, int row) {
    const int rows_of_block = cache_.group(cache_.plan().group_of(MemoryKind::kCross)).block_len;
    return pages_.at(table.at(static_cast<size_t>(row / rows_of_block))).slots[row % rows_of_block];
  }

  // Tokens [begin, end) look at their images, all of whose rows have been written.
  void check_spans(const Simulated& sequence, int begin, int end) {
    std::vector<CrossAttentionSpan> cross_spans;
    sequence.image_blocks.add_cross_spans(begin, end, 0, cross_spans);
    int cross_tokens = 0;
    for (const CrossAttentionSpan& cross : cross_spans) {
      cross_tokens += cross.count;
      const int token = begin + cross.first_token;
      const auto of_token = [&](const ImageGroup& group) { return group.begin() <= token; };
      const auto after = std::ranges::find_if_not(sequence.cross_images, of_token);
      const ImageGroup& group = *std::prev(after);
      CHECK_EQUAL(cross.seen, group.tokens_seen_by(token));
      for (int row = 0; row < cross.seen; ++row) {
        for (const auto& table : *cross.tables) {
          CHECK_EQUAL(image_slot(table, row), hash_of(sequence.scope, group, row));
        }
      }
    }
    const int first = sequence.images.empty() ? end : sequence.images.front().begin;
    CHECK_EQUAL(cross_tokens, std::max(0, end - std::max(begin, first)));
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
    count = plan_images(which, count);
    if (count < 0) return;
    const bool is_decoding = begin + count == known;
    int drafts = is_decoding ? below(4) : 0;
    drafts = memory.next_stop(cache_, begin + count + drafts) - begin - count;
    while (!memory.grow(cache_, begin + count)) {
      if (!make_room(which)) return;
    }
    if (!memory.grow(cache_, begin + count + drafts)) drafts = 0;
    drafts = std::max(0, std::min(drafts, memory.capacity(cache_) - begin - count));
    const bool has_state = cache_.plan().group_of(MemoryKind::kState) >= 0;
    if (has_state && (begin < sequence.prompt_len || (drafts > 0 && !memory.back_up(cache_)))) drafts = 0;
    CHECK_EQUAL(memory.has_backup(), has_state && drafts > 0);

    pages_.move(cache_.pool().take_moves());
    Tokens run = sequence.tokens;
    const Tokens proposed = {below(2), below(2), below(2)};
    run.insert(run.end(), proposed.begin(), proposed.begin() + drafts);
    write_images(sequence);
    if (count == 0) return;
    check_spans(sequence, begin, begin + count + drafts);
    compute(sequence, run, begin, count + drafts);
    draft(sequence, begin + count);
    memory.advance(cache_, sequence.key(), count, Keep::kContent);
    sequence.image_blocks.pass(cache_, memory.cached(), Keep::kContent);
    if (!is_decoding) return;
    // The next token, and those that were drafted right.
    const int right = below(drafts + 1);
    sequence.tokens.insert(sequence.tokens.end(), proposed.begin(), proposed.begin() + right);
    if (has_state && right < drafts) {
      memory.roll_back(cache_);
      CHECK_EQUAL(memory.cached(), begin);
      ++counts.rollbacks;
    } else {
      const int before = memory.drop_backup(cache_);
      memory.advance(cache_, sequence.key(), before + right, Keep::kContent);
    }
    sequence.tokens.push_back(below(2));
    memory.publish_drafts(cache_, sequence.key(), sequence.draft_rows);
    if (sequence.tokens.size() > 70) end_one(which, Keep::kContent);
  }

  // Rows [begin, begin + count) of `run`, as a model computes them.
  void compute(const Simulated& sequence, const Tokens& run, int begin, int count) {
    for (const CacheGroup& group : cache_.plan().groups) {
      for (int page = 0; page < group.pages; ++page) {
        const std::vector<int32_t>& table = sequence.memory.tables().at(static_cast<size_t>(group.first_table + page));
        if (group.kind == MemoryKind::kState) {
          run_state(sequence, run, begin, count, pages_.at(table.at(0)));
        } else if (group.kind == MemoryKind::kPaged || group.kind == MemoryKind::kWindow) {
          check_attention(sequence, run, begin, count, group, table);
        }
      }
    }
  }

  void check_attention(const Simulated& sequence, const Tokens& run, int begin, int count, const CacheGroup& group,
                       const std::vector<int32_t>& table) {
    const auto slot = [&](int position) -> uint64_t& {
      return pages_.at(table.at(static_cast<size_t>(position / kBlockLen))).slots[position % kBlockLen];
    };
    for (int position = begin; position < begin + count; ++position) {
      slot(position) = hash_of(sequence.scope, run, sequence.images, position + 1);
    }
    for (int position = begin; position < begin + count; ++position) {
      int first = group.kind == MemoryKind::kWindow ? std::max(0, position - group.window + 1) : 0;
      if (group.is_chunked) first = position - position % group.window;
      for (int seen = first; seen <= position; ++seen) {
        CHECK_EQUAL(slot(seen), hash_of(sequence.scope, run, sequence.images, seen + 1));
      }
    }
  }

  static void run_state(const Simulated& sequence, const Tokens& run, int begin, int count, Pages::Page& page) {
    if (begin > 0) CHECK_EQUAL(page.states.at(begin), hash_of(sequence.scope, run, sequence.images, begin));
    page.states = {{begin + count, hash_of(sequence.scope, run, sequence.images, begin + count)}};
  }

  // A drafter computes its rows too, now and then; it knows nothing of images.
  void draft(Simulated& sequence, int end) {
    const int index = cache_.plan().group_of(MemoryKind::kDraft);
    if (index < 0 || !sequence.images.empty() || below(2) == 0) return;
    const CacheGroup& group = cache_.group(index);
    const int found = sequence.memory.published_draft_tokens(cache_);
    for (int page = 0; page < group.pages; ++page) {
      const std::vector<int32_t>& table = sequence.memory.tables().at(static_cast<size_t>(group.first_table + page));
      for (int position = 0; position < end; ++position) {
        uint64_t& slot = pages_.at(table.at(static_cast<size_t>(position / kBlockLen))).slots[position % kBlockLen];
        const uint64_t expected = hash_of(sequence.scope, sequence.tokens, sequence.images, position + 1) + 1;
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
      sequence->image_blocks.add_blocks(referenced);
    }
    std::ranges::sort(referenced);
    referenced.erase(std::unique(referenced.begin(), referenced.end()), referenced.end());
    int pages = 0;
    for (const int32_t block : referenced) pages += cache_.pool().pages_of(block);
    CHECK_EQUAL(pages, cache_.pool().referenced_count());
    CHECK(cache_.order().snapshot_pages() <= cache_.pool().page_count() / 4);
  }

  std::mt19937 random_;
  BlockCache cache_;
  Pages pages_;
  std::vector<std::unique_ptr<Simulated>> running_;
  std::vector<Content> ended_;
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
  if ((kinds & 1) != 0 && seed / 15 % 3 == 1) groups.push_back(small_group(MemoryKind::kCross, kBlockLen, 0, pages()));
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
  Counts all;
  int64_t swapped_in = 0;
  int64_t evictions = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    const CachePlan plan = some_plan(seed);
    // At least what one sequence of 80 tokens takes.
    const int cross = plan.group_of(MemoryKind::kCross);
    const int of_images = cross < 0 ? 0 : kMaxImageBlocks * plan.groups[static_cast<size_t>(cross)].pages;
    const int pages = plan.pages_for(80, 20) + of_images + static_cast<int>(seed % 7) * 8;
    History history(seed, plan, {pages, seed % 3 == 0 ? 0 : static_cast<int>(seed % 40)});
    history.run(120);
    for (int64_t Counts::* count : kCounts) all.*count += history.counts.*count;
    swapped_in += history.cache().contents().counts().swapped_in;
    evictions += history.cache().contents().counts().evictions;
  }
  for (int64_t Counts::* count : kCounts) CHECK(all.*count > 100);
  CHECK(swapped_in > 100);
  CHECK(evictions > 1000);
}

}  // namespace turbomind::testing
