#include "model/cache_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "kernels/paged_attention.h"

namespace turbomind {

namespace {

// The part of a group's memory that padding its last page may waste. What a window or a state takes of a sequence is
// bounded, so that it matters less there.
constexpr double kPagedWaste = 1.0 / 24;
constexpr double kBoundedWaste = 1.0 / 5;
// Layers whose blocks of tokens take more than this many times their size, in pages for the pieces of others, are
// refused.
constexpr double kMaxPadding = 64;

bool is_bounded(const CacheGroup& group) {
  return group.kind == MemoryKind::kWindow || group.kind == MemoryKind::kState;
}

size_t pages_of(const CacheGroup& group, size_t page_bytes) {
  const size_t pieces = page_bytes / group.piece_bytes;
  return (static_cast<size_t>(group.pieces) + pieces - 1) / pieces;
}

double waste_of(const CacheGroup& group, size_t page_bytes) {
  const auto used = static_cast<double>(group.piece_bytes) * group.pieces;
  return static_cast<double>(pages_of(group, page_bytes) * page_bytes) / used - 1;
}

std::string name_of(const CacheGroup& group, size_t index) {
  const std::string layer = group.layers.empty() ? "" : ", of layer " + std::to_string(group.layers.front());
  return "cache group " + std::to_string(index) + layer;
}

void check(const CacheGroup& group, size_t index, int block_len) {
  const auto reject = [&](const std::string& problem) {
    throw invalid_argument(name_of(group, index) + ": " + problem);
  };
  if (group.kind == MemoryKind::kWindow && group.window < 1) {
    reject("a window must be >= 1, got " + std::to_string(group.window));
  }
  if (group.is_chunked && group.block_len > 0 && group.window % group.block_len != 0) {
    reject("chunks of " + std::to_string(group.window) + " tokens must be whole blocks, got " +
           std::to_string(group.block_len) + " tokens in one (cache_block_seq_len)");
  }
  if (group.pieces < 1) reject("it must have at least one piece, got " + std::to_string(group.pieces));
  if (group.piece_bytes == 0) reject("a piece must have a size, got 0 bytes");
  if (group.kind != MemoryKind::kState && group.block_len < 1) {
    reject("a block must hold at least one token, got " + std::to_string(group.block_len));
  }
  if (group.follows_tokens() && group.block_len != block_len) {
    reject("a block must hold " + std::to_string(block_len) + " tokens, as those of other layers do, got " +
           std::to_string(group.block_len));
  }
}

// Throws where what `plan`'s layers keep of tokens is too small for the pages that another group's pieces need.
void check_padding(const CachePlan& plan) {
  size_t used = 0;
  for (const CacheGroup& group : plan.groups) {
    if (group.follows_tokens()) used += group.piece_bytes * static_cast<size_t>(group.pieces);
  }
  const size_t taken = static_cast<size_t>(plan.pages_of_block()) * plan.page_bytes;
  if (used == 0 || static_cast<double>(taken) <= kMaxPadding * static_cast<double>(used)) return;
  const auto largest = std::ranges::max_element(plan.groups, {}, &CacheGroup::piece_bytes);
  throw invalid_argument(name_of(*largest, static_cast<size_t>(largest - plan.groups.begin())) + ": pages of " +
                         std::to_string(plan.page_bytes) + " bytes, which it needs, cannot be shared: a block of " +
                         std::to_string(plan.block_len) + " tokens would take " + std::to_string(taken) +
                         " bytes for " + std::to_string(used) + "; raise cache_block_seq_len");
}

// The largest page that wastes little; where none does, the one that wastes least.
size_t choose_page(const std::vector<CacheGroup>& groups) {
  size_t largest_piece = 0;
  for (const CacheGroup& group : groups) largest_piece = std::max(largest_piece, group.piece_bytes);
  size_t best = 0;
  double best_excess = std::numeric_limits<double>::infinity();
  for (const CacheGroup& from : groups) {
    if (from.kind == MemoryKind::kCross) continue;  // its blocks are made to fit
    for (int pieces = 1; pieces <= from.pieces; ++pieces) {
      const size_t page = from.piece_bytes * static_cast<size_t>(pieces);
      if (page < largest_piece) continue;
      double excess = 0;
      for (const CacheGroup& group : groups) {
        if (group.kind == MemoryKind::kCross) continue;
        const double allowed = is_bounded(group) ? kBoundedWaste : kPagedWaste;
        excess = std::max(excess, waste_of(group, page) - allowed);
      }
      if (excess < best_excess || (excess == best_excess && page > best)) {
        best = page;
        best_excess = excess;
      }
    }
  }
  return best > 0 ? best : largest_piece;
}

// As long as makes the most of its pages.
void fit_cross_blocks(CacheGroup& group, size_t page_bytes) {
  CacheGroup best = group;
  const auto bytes_of_row = [&](const CacheGroup& of) {
    return static_cast<double>(pages_of(of, page_bytes) * page_bytes) / of.block_len;
  };
  for (CacheGroup next = group; next.block_len * 2 <= kPartitionTokens && next.piece_bytes * 2 <= page_bytes;) {
    next.block_len *= 2;
    next.piece_bytes *= 2;
    if (bytes_of_row(next) < bytes_of_row(best)) best = next;
  }
  group = best;
}

}  // namespace

int CacheGroup::first_block_seen(int position) const {
  if (kind != MemoryKind::kWindow) return 0;
  return (is_chunked ? position / window * window : std::max(0, position - window + 1)) / block_len;
}

int CachePlan::table_count() const {
  return groups.empty() ? 0 : groups.back().first_table + groups.back().pages;
}

int CachePlan::group_of(MemoryKind kind) const {
  const auto found = std::ranges::find(groups, kind, &CacheGroup::kind);
  return found == groups.end() ? -1 : static_cast<int>(found - groups.begin());
}

int CachePlan::pages_of_block() const {
  int pages = 0;
  for (const CacheGroup& group : groups) {
    if (group.follows_tokens()) pages += group.pages;
  }
  return pages;
}

int CachePlan::pages_of_group(const CacheGroup& group, int tokens, int step_tokens) {
  if (group.kind == MemoryKind::kCross) return 0;
  int blocks = 1;
  if (group.follows_tokens()) blocks = group.blocks_for(tokens);
  // A step's rows and what they look back on, which begin anywhere in a block.
  if (group.kind == MemoryKind::kWindow) {
    blocks = std::min(blocks, group.blocks_for(group.window + std::min(step_tokens, tokens)) + 1);
  }
  return blocks * group.pages;
}

int CachePlan::pages_for(int tokens, int step_tokens) const {
  int pages = 0;
  for (const CacheGroup& group : groups) pages += pages_of_group(group, tokens, step_tokens);
  return pages;
}

void CachePlan::expect_a_sequence(int pages_there, int step_tokens) const {
  if (max_tokens(pages_there, step_tokens, 1) > 0) return;
  const auto needs = [&](const CacheGroup& group) { return pages_of_group(group, 1, step_tokens); };
  const auto neediest = std::ranges::max_element(groups, {}, needs);
  throw invalid_argument(
      "not enough memory for the cache: the shortest sequence takes " + std::to_string(pages_for(1, step_tokens)) +
      " pages of " + std::to_string(page_bytes) + " bytes, and there are " + std::to_string(pages_there) + "; " +
      name_of(*neediest, static_cast<size_t>(neediest - groups.begin())) + ", takes " +
      std::to_string(needs(*neediest)) + " of them; raise cache_max_entry_count or lower cache_block_seq_len");
}

int CachePlan::max_tokens(int pages, int step_tokens, int limit) const {
  int low = 0;
  int high = limit;
  while (low < high) {
    const int middle = high - (high - low) / 2;
    if (pages_for(middle, step_tokens) <= pages) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

CachePlan plan_cache(int block_len, std::vector<CacheGroup> groups) {
  for (size_t i = 0; i < groups.size(); ++i) check(groups[i], i, block_len);
  CachePlan plan{block_len, choose_page(groups), std::move(groups)};
  int table = 0;
  for (CacheGroup& group : plan.groups) {
    if (group.kind == MemoryKind::kCross) fit_cross_blocks(group, plan.page_bytes);
    group.page_pieces = static_cast<int>(plan.page_bytes / group.piece_bytes);
    group.page_pieces = std::min(group.page_pieces, group.pieces);
    group.pages = static_cast<int>(pages_of(group, plan.page_bytes));
    group.first_table = table;
    table += group.pages;
  }
  check_padding(plan);
  return plan;
}

}  // namespace turbomind
