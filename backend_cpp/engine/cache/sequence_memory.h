// One sequence's blocks in each cache group, and how much of their content is published.
//
//   tokens      |------- cached -------|
//   published   |- path of nodes -|        whole blocks
//   paged       0  1  2  3  4  5  6  7
//   window      -  -  -  -  4  5  6  7     blocks before those that the next token attends to are released
//   state       one block, which holds the state after `cached` tokens
//
// A prefix hit of n tokens references what every group needs at n: all blocks before it, the blocks within the window
// before it, a snapshot of the state at exactly n. If n is not a multiple of the block length, the snapshot includes
// the partial last block, which is copied. The longest such n is used. Without states, a block that shares only its
// first tokens with the prefix is copied likewise, and an ended sequence leaves its partial last block for that.
//
// Later requests branch off at few positions: the end of a prompt, the ends of messages, where two prompts were seen to
// diverge. At these anchors, snapshots of the state are made, and the blocks that a window needs are kept as long as
// other content; other blocks that have left a window are evicted first.
//
// A step that verifies drafts may be rolled back. Blocks of tokens are simply overwritten; a recurrent state cannot be
// truncated, so it is copied before such a step (back_up) and restored (roll_back): the tokens before the first
// rejected draft run again, with the same bits.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/block_cache.h"
#include "engine/generation/token_table.h"

namespace turbomind {

// Other prompts are likely to diverge from a prompt at the ends of its messages, and shortly before its end, where a
// question follows a document. The prompt is only tokens here. Chat templates put special tokens between messages, so
// special tokens mark the ends of messages, also in prompts that no template made.

// Special tokens closer than this are between the same two messages: <|im_end|> \n <|im_start|>.
inline constexpr int kMinSpecialDistance = 8;

// Forks of a prompt: those of its first two messages, and of the last ones.
inline constexpr int kMaxBranchPoints = 8;

// For a prompt in blocks of `block_len` tokens, returns the numbers of leading tokens that other prompts are likely to
// share: ascending, at most kMaxBranchPoints, in [1, tokens.size()].
std::vector<int> branch_points(const std::vector<int32_t>& tokens, const TokenTable& table, int block_len);

class SequenceMemory {
 public:
  int cached() const { return cached_; }  // leading tokens that were computed
  int published_draft_tokens(const BlockCache& cache) const { return published_drafts_ * cache.block_len(); }
  // For the runner. Valid until this changes.
  const PageTables& tables() const { return tables_; }
  bool is_empty() const { return groups_.empty(); }

  // References what the cache holds for the first tokens of `prefix`, at most `limit`, and sets the anchors: the last
  // block boundary within the first `prompt_len` tokens, and `branch_points` (token counts, ascending); without states,
  // the block boundaries before these. The memory must be empty.
  void match(BlockCache& cache, const PrefixKey& prefix, int limit, int prompt_len,
             const std::vector<int>& branch_points);
  // The same without matching content.
  void begin(const BlockCache& cache, int prompt_len, const std::vector<int>& branch_points);
  // Its anchors in tokens, ascending.
  const std::vector<int>& anchors() const { return anchors_; }
  // Adds an anchor after this many tokens.
  void add_anchor(int tokens);

  // Allocates blocks for the first `tokens` tokens. False: too many pages are referenced; blocks allocated so far stay.
  bool grow(BlockCache& cache, int tokens);
  // The number of tokens that the blocks have room for.
  int capacity(const BlockCache& cache) const;
  // Pages needed for `tokens` tokens in addition to those it has, if one token is computed at a time.
  int missing_pages(const BlockCache& cache, int tokens) const;
  // The latest token at which the next prompt chunk must end; `end`: no limit.
  int next_stop(const BlockCache& cache, int end) const;

  // Advances by `count` computed tokens: publishes full blocks, makes snapshots, releases blocks that left a window, as
  // `keep` says. After back_up(), tokens are only counted.
  void advance(BlockCache& cache, const PrefixKey& prefix, int count, Keep keep);
  // Copies the states after `cached` tokens, until one of the next two is called. False: no space.
  bool back_up(BlockCache& cache);
  // Restores the states; the tokens since back_up() count as not computed.
  void roll_back(BlockCache& cache);
  // Frees the copy. Returns the number of tokens since back_up(); the caller passes them to advance().
  int drop_backup(BlockCache& cache);
  bool has_backup() const { return backup_ != kNoBlock; }
  // The drafter has computed the first `count` tokens.
  void publish_drafts(BlockCache& cache, const PrefixKey& prefix, int count);
  // Releases all blocks. Keep::kContent: without states, publishes the partial last block too.
  void release(BlockCache& cache, const PrefixKey& prefix, Keep keep);

  // Appends the blocks that it references.
  void add_blocks(std::vector<int32_t>& blocks) const;
  // Throws Error(kInternal) if tables, blocks and counts do not agree.
  void check_invariants(const BlockCache& cache) const;

 private:
  // Of one group: blocks[i] holds tokens [i block_len, (i + 1) block_len); kNoBlock before `first`.
  struct GroupBlocks {
    std::vector<int32_t> blocks;
    int first = 0;
  };

  void set_block(const BlockCache& cache, int group, int index, int32_t block);
  // A match: a number of whole blocks, and the node of a partial block after them.
  struct Found {
    int blocks = 0;
    NodeId part = kNoNode;
    int tokens = 0;
  };

  // How many blocks of a path can be used, at most `max_blocks`.
  static int longest_valid(const BlockCache& cache, const std::vector<NodeId>& path, int max_blocks);
  // The longest match of more than `min_tokens` and at most `limit` tokens that ends within a block: with states, at an
  // anchor; without, after `min_tokens` tokens in whole blocks, where the block that shares most of its tokens parts.
  Found find_part(BlockCache& cache, const PrefixKey& prefix, const std::vector<NodeId>& path, int min_tokens,
                  int limit) const;
  // References the blocks of a match, all or none. Returns the index of the first that failed, or their number.
  int take(BlockCache& cache, const std::vector<NodeId>& path, const Found& found);
  int take_chain(BlockCache& cache, const std::vector<NodeId>& path, const Found& found, int group);
  bool take_block(BlockCache& cache, const std::vector<NodeId>& path, int group, int index);
  bool take_copy(BlockCache& cache, int group, int index, NodeId node);
  void release_match(BlockCache& cache);
  // The node of the first `count` tokens after the published blocks.
  NodeId next_node(BlockCache& cache, const PrefixKey& prefix, int count) const;
  // Attaches a group's block `index` to a node.
  void attach(BlockCache& cache, const PrefixKey& prefix, NodeId node, int group, int index);
  void publish_block(BlockCache& cache, const PrefixKey& prefix);
  void make_snapshot(BlockCache& cache, const PrefixKey& prefix);
  void make_part(BlockCache& cache, const PrefixKey& prefix);
  void pass_windows(BlockCache& cache, Keep keep);
  void keep_end(BlockCache& cache, const PrefixKey& prefix);
  void publish_part(BlockCache& cache, const PrefixKey& prefix);
  // Sets the node whose snapshot it last made or used.
  void record_snapshot(BlockCache& cache, NodeId node);

  int cached_ = 0;
  int matched_ = 0;    // of these, found in the cache
  int published_ = 0;  // leading blocks whose content is published
  int published_drafts_ = 0;
  int prompt_len_ = 0;
  int rolling_ = 0;            // block index of the snapshot that the next one replaces; 0: none
  int32_t backup_ = kNoBlock;  // a block of states
  int computed_ = 0;           // tokens computed since back_up()
  std::vector<int> anchors_;   // in tokens, ascending
  int fork_ = 0;               // tokens after which other prompts diverge too; 0: none
  NodeId snapshot_ = kNoNode;  // of the last snapshot that it made or used, except the fork's; retained
  std::vector<NodeId> path_;   // of published blocks; the last node is retained
  std::vector<GroupBlocks> groups_;
  PageTables tables_;
};

}  // namespace turbomind
