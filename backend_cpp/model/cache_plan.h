// Cache groups of a model's layers, and their division into pages of one arena.
//
// Layers with the same kind of memory and the same shape form a group. A group's block is what its layers remember of
// `block_len` tokens (of a state: of all tokens so far). It consists of equal pieces, one a layer, and takes as many
// pages as these fill; whoever runs the model finds the pages in a table each:
//
//   a page of 3 pieces        group 0: 3 layers that see everything       1 page a block      table 0
//                             group 1: 15 layers with a sliding window    5 pages a block     tables 1 .. 5
//
// So any page serves any group, and no memory is set aside for one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace turbomind {

enum class MemoryKind : uint8_t {
  kPaged,   // keys and values, or latents, of all tokens
  kWindow,  // of the last `window` tokens
  kState,   // a fixed size a sequence
  kCross,   // of rows that tokens attend to by cross-attention
  kDraft,   // of all tokens, by what drafts; computed again where it is missing
};

struct CacheGroup {
  MemoryKind kind = MemoryKind::kPaged;
  int window = 0;                 // positions that a token sees, its own included; of kWindow
  int block_len = 0;              // tokens of a block; of kCross, rows; of kState, 0
  int pieces = 0;                 // of a block: layers, of kState parts of layers
  size_t piece_bytes = 0;         // of one piece of a block
  std::vector<int> layers;        // of the model, in the order of the pieces; not read here
  bool is_chunked = false;        // of kWindow: a token sees those of `window` positions that begin at a multiple of it
  bool is_separate_pool = false;  // its pages are in other memory than the others', and do not move with them

  // Members that plan_cache() sets.
  int page_pieces = 0;  // pieces in a page
  int pages = 0;        // of a block
  int first_table = 0;  // of `pages` tables

  // Blocks that hold `tokens` tokens, or, of kCross, rows.
  int blocks_for(int tokens) const { return (tokens + block_len - 1) / block_len; }
  // The first block that the token at `position`, or a later one, looks at.
  int first_block_seen(int position) const;
  // Whether it has a block for each `block_len` tokens of a sequence.
  bool follows_tokens() const { return kind != MemoryKind::kState && kind != MemoryKind::kCross; }
};

// How many pages a cache has.
struct CacheSize {
  int page_count = 0;       // where the model runs
  int host_page_count = 0;  // in the host's memory, numbered after the others
};

// Copy of page `from` to page `to`. At most one of them is the host's.
struct PageMove {
  int32_t from;
  int32_t to;
};

// [tables][blocks]: the pages of a sequence. Of blocks that are gone: -1.
using PageTables = std::vector<std::vector<int32_t>>;

struct CachePlan {
  int block_len = 0;
  size_t page_bytes = 0;
  std::vector<CacheGroup> groups;

  int table_count() const;
  // Index of the first group of a kind, -1: there is none.
  int group_of(MemoryKind kind) const;
  // Pages of one block in each group that has one for each `block_len` tokens.
  int pages_of_block() const;
  // Pages that a sequence of this many tokens holds, with `step_tokens` of them computed at once.
  int pages_for(int tokens, int step_tokens) const;
  // The longest sequence that this many pages hold, at most `limit` tokens.
  int max_tokens(int pages, int step_tokens, int limit) const;
  // Throws Error (kInvalidArgument), with the group that needs most, where this many pages hold no sequence at all.
  void expect_a_sequence(int pages_there, int step_tokens) const;

 private:
  static int pages_of_group(const CacheGroup& group, int tokens, int step_tokens);
};

// Chooses the size of a page, and of cross-attention's blocks. Throws Error (kInvalidArgument) that names the first
// group that cannot be (a window of 0, no pieces, pieces of no size) or cannot be in one arena with the others: its
// blocks have another length, or the pages that the largest piece needs would be nearly empty.
CachePlan plan_cache(int block_len, std::vector<CacheGroup> groups);

}  // namespace turbomind
