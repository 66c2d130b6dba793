// What one sequence holds in each cache group, and how far its content is known to the cache.
//
//   tokens      |------- cached -------|
//   published   |- path of nodes -|        whole blocks
//   paged       0  1  2  3  4  5  6  7
//   window      -  -  -  -  4  5  6  7     blocks before those that the next token sees are given back
//   state       one block, which holds the state after `cached` tokens
//
// A prefix hit of n tokens takes what every group needs at n: all blocks before it, those within the window before it,
// a snapshot of the state at exactly n. Where n is no multiple of the blocks' length, the snapshot has the beginning of
// the last block too, which is copied. The longest such n is taken.
//
// Somebody is likely to come back to a few places alone: the end of a prompt, the ends of messages, where a prompt was
// seen to leave another. Of these anchors, snapshots of the state are made, and what a window needs there is kept as
// long as other content; the rest of what has passed a window is the first to go.
//
// A step that runs drafts may have to be taken back. Blocks of tokens are written again then; a state cannot be cut, so
// it is copied before such a step (back_up), and the copy takes its place (roll_back): the tokens before the first
// wrong draft run once more, with the same bits.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/block_cache.h"

namespace turbomind {

class SequenceMemory {
 public:
  int cached() const { return cached_; }        // leading tokens that what is held follows from
  int published() const { return published_; }  // leading blocks whose content is published
  int published_draft_rows(const BlockCache& cache) const { return published_drafts_ * cache.block_len(); }
  // For the runner. Valid until this changes.
  const PageTables& tables() const { return tables_; }
  bool is_empty() const { return groups_.empty(); }

  // Takes what the cache holds of the first tokens of `prefix`, at most `limit`, and notes its anchors: the last border
  // of blocks in its first `prompt_len` tokens, and `marks`, ascending numbers of tokens; without states, the borders
  // before these. Nothing is held before.
  void match(BlockCache& cache, const PrefixKey& prefix, int limit, int prompt_len, const std::vector<int>& marks);
  // The same without looking for content.
  void begin(const BlockCache& cache, int prompt_len, const std::vector<int>& marks);
  // Its anchors in tokens, ascending.
  const std::vector<int>& anchors() const { return anchors_; }
  // Another anchor, after this many tokens.
  void add_anchor(int tokens);

  // Makes places for the first `tokens` tokens. False: too many pages are referenced; what there are of places stay.
  bool grow(BlockCache& cache, int tokens);
  // For how many tokens there are places.
  int places(const BlockCache& cache) const;
  // Pages that it will need for `tokens` tokens in addition to those it holds, one token computed at a time.
  int missing_pages(const BlockCache& cache, int tokens) const;
  // Where a chunk that continues from here must end at the latest; `end` where anywhere will do.
  int next_stop(const BlockCache& cache, int end) const;

  // `count` more tokens are computed: publishes full blocks, makes snapshots, gives back what has passed a window.
  // `keep`: of what it gives back. After back_up(), tokens are only noted.
  void advance(BlockCache& cache, const PrefixKey& prefix, int count, Keep keep);
  // Keeps what the states are after `cached` tokens, until a call of one of the next two. False: there is no room.
  bool back_up(BlockCache& cache);
  // The tokens since back_up() are not computed.
  void roll_back(BlockCache& cache);
  // They are. Returns how many were noted; advance() is to count them now.
  int drop_backup(BlockCache& cache);
  bool has_backup() const { return backup_ != kNoBlock; }
  // The drafter has computed the first `count` tokens.
  void publish_drafts(BlockCache& cache, const PrefixKey& prefix, int count);
  // Gives everything back.
  void give_up(BlockCache& cache, Keep keep);

  // Appends the blocks that it references.
  void add_blocks(std::vector<int32_t>& blocks) const;
  // Throws Error(kInternal) where tables, blocks and counts do not agree.
  void check_invariants(const BlockCache& cache) const;

 private:
  // Of one group: blocks[i] holds tokens [i block_len, (i + 1) block_len); kNoBlock before `first`.
  struct Held {
    std::vector<int32_t> blocks;
    int first = 0;
  };

  void set_block(const BlockCache& cache, int group, int index, int32_t block);
  // Blocks in front of a place up to which content is found, and the node of a block's beginning after them.
  struct Found {
    int blocks = 0;
    NodeId part = kNoNode;
    int tokens = 0;
  };

  // How many blocks of a path can be taken, at most `most`.
  static int longest_valid(const BlockCache& cache, const std::vector<NodeId>& path, int most);
  // The last anchor, after more than `least` and at most `limit` tokens, that can be taken and is no border of blocks.
  Found find_part(BlockCache& cache, const PrefixKey& prefix, const std::vector<NodeId>& path, int least,
                  int limit) const;
  // Takes what is found at the end of path[0 .. blocks), or of a part after it. Otherwise gives back what it took;
  // returns the first block that could not be had, or `blocks`.
  int take(BlockCache& cache, const std::vector<NodeId>& path, const Found& found);
  void publish_block(BlockCache& cache, const PrefixKey& prefix);
  void make_snapshot(BlockCache& cache, const PrefixKey& prefix);
  void make_part(BlockCache& cache, const PrefixKey& prefix);
  void pass_windows(BlockCache& cache, Keep keep);
  void keep_end(BlockCache& cache);
  // The last snapshot that it made or used is this node's now.
  void note_snapshot(BlockCache& cache, NodeId node);
  bool is_anchored(const CacheGroup& group, int index) const;

  int cached_ = 0;
  int published_ = 0;
  int published_drafts_ = 0;
  int prompt_len_ = 0;
  int rolling_ = 0;            // borders of the snapshot that the next one replaces; 0: none
  int32_t backup_ = kNoBlock;  // a block of states
  int noted_ = 0;              // tokens computed since it was made
  std::vector<int> anchors_;   // in tokens, ascending
  int fork_ = 0;               // tokens after which others part from it too; 0: none
  NodeId snapshot_ = kNoNode;  // of the last snapshot that it made or used, but for that of the fork; held
  std::vector<NodeId> path_;   // of published blocks; the last is held
  std::vector<Held> groups_;
  PageTables tables_;
};

}  // namespace turbomind
