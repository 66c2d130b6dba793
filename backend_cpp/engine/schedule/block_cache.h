// The KV cache's blocks: who uses them, and what the unused ones still hold.
//
// A block is in one of three states:
//   free        holds nothing
//   referenced  in the block tables of one or more sequences
//   idle        in no table, but its content is known and can be used again until the space is needed
//
//            allocate                  release, published
//   free ----------------> referenced --------------------> idle
//     ^                      |    ^                         |  |
//     '----------------------'    '-------------------------'  | allocate, when none is free:
//        release, not published           match                | the content is forgotten
//                                 ^                            |
//                                 '----------------------------'
//
// Sequences A and B begin with the same 8 tokens and go on differently; C has ended (blocks of 4 tokens):
//
//   block tables        blocks                                    index: (parent, tokens) -> block
//   A: 0 1 4            0  t0..t3   parent root   2 references    root, t0..t3  -> 0
//   B: 0 1 5            1  t4..t7   parent 0      2 references    0,    t4..t7  -> 1
//                       2  c0..c3   parent root   idle            root, c0..c3  -> 2
//   free:  6 7          3  c4..c7   parent 2      idle            2,    c4..c7  -> 3
//   idle:  3 2          4  a8..     not full      1 reference     (4 and 5 cannot be found until they are full)
//                       5  b8..     not full      1 reference
//
// Content is addressed by what it is: a full block's tokens and, through its parent, all tokens before them. Entries
// are compared token by token, so a hash collision never serves wrong content; where rows stand in place of tokens,
// their digests are compared too. A scope keeps content apart: blocks are found only by the scope that published them
// (scope 0 is shared by everyone who uses it). Prefix caching,
// conversations kept between requests, recomputation after preemption, and several answers to one prompt are all this
// one mechanism.
//
// Idle blocks are taken again least recently used first; within a chain the last block goes first.
//
// Where the host has blocks too (numbers from block_count() on), what an idle block holds goes there before the block
// is taken, and comes back when it is found: that is cheaper than to compute it again. The host's blocks are in no
// table: they are empty, or hold content that can be found, and lose it least recently used first. Moves are collected,
// and are to be done in their order before the next step.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/schedule/cache_observer.h"
#include "model/block_cache_size.h"
#include "model/embedding_range.h"

namespace turbomind {

inline constexpr int32_t kNoBlock = -1;

// All that keys and values of a sequence follow from. Sequences share blocks as far as theirs are equal.
struct PrefixKey {
  uint64_t scope = 0;  // keeps content apart
  const std::vector<int32_t>& tokens;
  std::span<const EmbeddingRange> pictures = {};  // rows in place of tokens
  // What the scope was made from, for those who are told of the cache.
  std::string_view lora_name = {};
  std::string_view salt = {};
  bool is_looked_at = false;  // these are the rows of pictures (model/picture_group.h), which no sequence begins with
};

class BlockCache {
 public:
  // `hash_mask` is for tests, which make hashes collide with it.
  explicit BlockCache(const CacheSize& size, uint64_t hash_mask = ~uint64_t{0});

  int block_count() const { return block_count_; }
  int block_len() const { return block_len_; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int idle_count() const { return static_cast<int>(idle_.size()); }
  int referenced_count() const { return block_count() - free_count() - idle_count(); }
  // Blocks that allocate() could give out.
  int available_count() const { return free_count() + idle_count(); }
  int host_count() const { return static_cast<int>(blocks_.size()) - block_count_; }
  int host_used_count() const { return static_cast<int>(host_used_.size()); }
  // Contents that were given up for space, that went to the host, and that came back.
  int64_t eviction_count() const { return evictions_; }
  int64_t swapped_out_count() const { return swapped_out_; }
  int64_t swapped_in_count() const { return swapped_in_; }

  // A block for new content, with one reference; -1 when every block is referenced.
  int32_t allocate();
  // The moves since the last call, to be done one after the other before anything is written that was planned since.
  std::vector<BlockMove> take_moves() { return std::exchange(moves_, {}); }

  // Drops one reference of each block but kNoBlock and empties the list. What nobody references becomes idle if its
  // content is published, else free. Throws Error(kInternal) for a block that is not referenced.
  void release(std::vector<int32_t>& blocks);
  // The same, but content that nobody else references is forgotten.
  void release_and_forget(std::vector<int32_t>& blocks);

  // Drops one reference of a block and puts kNoBlock in its place; forgets its content or not, as above.
  void give_back(int32_t& block, bool keeps_content);

  // Forgets what idle blocks and those of the host hold.
  void forget_all();

  // Appends the longest run of published blocks that holds the first tokens of `prefix` (at most `limit` of them), with
  // a reference each, and returns how many tokens it covers.
  int match(const PrefixKey& prefix, int limit, std::vector<int32_t>& blocks);

  // Publishes that blocks[index] holds tokens [index block_len, (index + 1) block_len). The blocks before it must be
  // published. Where the same content is published already, blocks[index] is exchanged for that block.
  void publish(const PrefixKey& prefix, int index, std::vector<int32_t>& blocks);

  // Tells of what can be found from now on; `observer` must outlive the cache.
  void observe(CacheObserver& observer) { observer_ = &observer; }
  struct Held {
    uint64_t content = 0;
    uint64_t parent = 0;
    bool is_in_host = false;
    std::span<const int32_t> tokens;
  };
  // What is published, each content behind its parent.
  std::vector<Held> contents() const;

  // Throws Error(kInternal) when counts, lists and index do not agree.
  void check_invariants() const;

 private:
  // Where rows of a picture stand in a block: `count` tokens from number `at` on are its rows `first_row`, ... of
  // `rows`.
  struct PicturePart {
    int at = 0;
    int count = 0;
    int first_row = 0;
    int rows = 0;
    PictureGrid grid{};
    ContentDigest digest{};
    bool operator==(const PicturePart&) const = default;
  };
  // What a block holds.
  struct Content {
    uint64_t parent = 0;  // content of the block before it, or the scope's root
    std::span<const int32_t> tokens;
    std::vector<PicturePart> pictures;
  };
  struct Block {
    int references = 0;
    uint64_t content = 0;                // unique number of the published content; 0: not published
    uint64_t key = 0;                    // its place in the index, when published
    uint64_t parent = 0;                 // as in Content, when published
    std::vector<int32_t> tokens;         // [block_len] when published
    std::vector<PicturePart> pictures;   // of a published block
    std::list<int32_t>::iterator place;  // in idle_, when idle; in host_used_, if the host's
    bool is_idle = false;
  };

  static uint64_t root(const PrefixKey& prefix) { return prefix.scope | uint64_t{prefix.is_looked_at ? 3u : 2u} << 62; }
  // Of block number `index` of a sequence.
  Content content_of(const PrefixKey& prefix, uint64_t parent, int index) const;
  int32_t find(const Content& content, uint64_t key) const;
  uint64_t key_of(const Content& content) const;
  void unpublish(int32_t block);
  // Makes `to`, which holds nothing, the block that holds what `from` did.
  void hand_over(int32_t from, int32_t to);
  bool is_of_host(int32_t block) const { return block >= block_count_; }
  // What an idle block holds goes to the host, or is forgotten where the host has no blocks.
  void move_out(int32_t block);
  // A block with one reference that gets what a block of the host holds; -1 when every block is referenced.
  int32_t move_in(int32_t host_block);
  void empty_host_block(int32_t host_block);
  void reference(int32_t block);
  void drop(int32_t block, bool keeps_content);

  int block_count_;
  int block_len_;
  uint64_t hash_mask_;
  std::vector<Block> blocks_;  // the host's are the last ones
  std::vector<int32_t> free_;
  std::list<int32_t> idle_;  // least recently used first
  std::vector<int32_t> host_free_;
  std::list<int32_t> host_used_;  // least recently used first
  std::vector<BlockMove> moves_;
  std::unordered_multimap<uint64_t, int32_t> index_;  // key_of(content) -> block
  uint64_t next_content_ = 1;
  CacheObserver* observer_ = nullptr;  // may be null
  int64_t evictions_ = 0;
  int64_t swapped_out_ = 0;
  int64_t swapped_in_ = 0;
};

}  // namespace turbomind
