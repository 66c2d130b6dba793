#include "kernels/cuda/latent/latent.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <utility>

namespace turbomind::cuda {

namespace {

constexpr int kItemFields = 8;
constexpr int kMergeFields = 5;
constexpr int kKeyUnit = 64;    // keys that the kernel visits at a time
constexpr int kMinKeys = 128;   // fewer are not worth a part that is merged
constexpr int kItemCost = 128;  // what an item costs besides its keys, in keys

// Numbers of an item and of a multiprocessor, in the order of LatentPlanView.
using Item = std::array<int, kItemFields>;
using Merge = std::array<int, kMergeFields>;

int tiles_of(int rows, int heads, int tile) {
  return divide_up(rows * heads, tile);
}

// The arrays of a plan, one after the other; Int: int32_t or const int32_t.
template <class Int>
struct Arrays {
  Int* filled_rows;
  Int* first_item;
  Int* merges[kMergeFields];
  Int* items[kItemFields];

  Arrays(const LatentPiece& piece, Int* memory) {
    const auto take = [&memory](int count) { return std::exchange(memory, memory + count); };
    filled_rows = take(1);
    first_item = take(piece.teams + 1);
    for (Int*& field : merges) field = take(piece.multiprocessors());
    for (Int*& field : items) field = take(piece.max_items);
  }
};

// Calls visit(span, first packed row, one past the last key) for each tile, the long ones of a span first.
template <class Visit>
void for_tile(const LatentPiece& piece, Visit&& visit) {
  for (const DeviceSpan& span : piece.spans) {
    const int keys = span.first_position + span.count;
    for (int t = tiles_of(span.count, piece.heads, piece.tile()) - 1; t >= 0; --t) {
      const int first = t * piece.tile();
      const int end = span.first_position + (first + piece.tile()) / piece.heads;
      visit(span, first, std::min(keys, end));
    }
  }
}

// Of an item: no more than that go to a team on average, in whole units.
int max_keys(const LatentPiece& piece) {
  int64_t total = 0;
  for_tile(piece, [&](const DeviceSpan&, int, int end) { total += end; });
  const auto average = static_cast<int>(divide_up(total, int64_t{piece.teams}));
  return std::max(kMinKeys, divide_up(average, kKeyUnit) * kKeyUnit);
}

LatentPiece make_piece(std::vector<DeviceSpan> spans, int padded_spans, int heads, int multiprocessors) {
  LatentPiece piece;
  piece.first_token = spans.front().first_token;
  const int filled = spans.back().first_token + spans.back().count - piece.first_token;
  const int padding = padded_spans - static_cast<int>(spans.size());  // of one row each
  piece.rows = filled + padding;
  piece.heads = heads;
  // Long sequences: neighbours share what the second-level cache holds of the keys.
  const bool is_long = int64_t{filled} * heads > int64_t{kLatentTile} * static_cast<int64_t>(spans.size());
  piece.width = is_long && multiprocessors > 1 ? 2 : 1;
  piece.teams = multiprocessors / piece.width;
  // A tile of `end` keys is divide_up(end, max_keys) items, and teams * max_keys are at least all keys.
  piece.max_items = piece.teams + padding * tiles_of(1, heads, piece.tile());
  for (const DeviceSpan& span : spans) piece.max_items += tiles_of(span.count, heads, piece.tile());
  piece.spans = std::move(spans);
  return piece;
}

}  // namespace

size_t LatentPiece::plan_size() const {
  return static_cast<size_t>(1 + teams + 1 + kMergeFields * multiprocessors() + kItemFields * max_items);
}

std::vector<LatentPiece> cut_latents(std::vector<DeviceSpan> spans, int padded_spans, int heads, int multiprocessors) {
  std::erase_if(spans, [](const DeviceSpan& span) { return span.count == 0; });
  std::sort(spans.begin(), spans.end(),
            [](const DeviceSpan& a, const DeviceSpan& b) { return a.first_token < b.first_token; });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first_token != spans[i - 1].first_token + spans[i - 1].count) return {};
  }
  if (spans.empty()) return {};
  const int max_tokens = std::max(1, kMaxLatentRows / heads);
  std::vector<std::vector<DeviceSpan>> parts(1);
  int left = max_tokens;
  for (DeviceSpan span : spans) {
    while (span.count > 0) {
      if (left == 0) {
        parts.emplace_back();
        left = max_tokens;
      }
      const int count = std::min(left, span.count);
      parts.back().push_back({span.first_token, count, span.first_position, span.first_block});
      span.first_token += count;
      span.first_position += count;
      span.count -= count;
      left -= count;
    }
  }
  std::vector<LatentPiece> pieces;
  for (std::vector<DeviceSpan>& part : parts) {
    const int padded =
        parts.size() == 1 ? std::max(padded_spans, static_cast<int>(part.size())) : static_cast<int>(part.size());
    pieces.push_back(make_piece(std::move(part), padded, heads, multiprocessors));
  }
  return pieces;
}

void fill_latent_plan(const LatentPiece& piece, int32_t* memory) {
  const int limit = max_keys(piece);
  using Team = std::pair<int64_t, int>;  // what it has to do, and which it is
  std::priority_queue<Team, std::vector<Team>, std::greater<>> teams;
  for (int t = 0; t < piece.teams; ++t) teams.emplace(0, t);
  std::vector<std::vector<Item>> items(static_cast<size_t>(piece.teams));
  std::vector<Merge> merges;
  int partial_rows = 0;

  for_tile(piece, [&](const DeviceSpan& span, int first, int end) {
    const int rows = std::min(piece.tile(), span.count * piece.heads - first);
    const int parts = divide_up(end, limit);
    const int first_token = span.first_token - piece.first_token;
    if (parts > 1) {
      // This many of all multiprocessors merge it as it has of all keys, so that no more take part than there are.
      const int mergers = static_cast<int>(std::max<int64_t>(int64_t{end} * piece.width / limit, 1));
      const int chunk = divide_up(rows, mergers);
      for (int offset = 0; offset < rows; offset += chunk) {
        const int packed = first_token * piece.heads + first;
        merges.push_back({packed + offset, packed + std::min(offset + chunk, rows), partial_rows + offset,
                          partial_rows + parts * rows, rows});
      }
    }
    for (int key = 0; key < end; key += limit) {
      const auto [cost, team] = teams.top();
      teams.pop();
      const int last = std::min(end, key + limit);
      teams.emplace(cost + last - key + kItemCost, team);
      items[static_cast<size_t>(team)].push_back({first_token, span.first_block, span.count,
                                                  span.first_position + span.count, first, key, last,
                                                  parts > 1 ? partial_rows : -1});
      if (parts > 1) partial_rows += rows;
    }
  });
  if (static_cast<int>(merges.size()) > piece.multiprocessors() ||
      static_cast<size_t>(partial_rows) > piece.partial_rows()) {
    throw internal_error("a plan of latent attention has more parts than it has room for");
  }

  std::fill_n(memory, piece.plan_size(), 0);
  const Arrays<int32_t> arrays(piece, memory);
  *arrays.filled_rows = piece.spans.back().first_token + piece.spans.back().count - piece.first_token;
  for (size_t m = 0; m < merges.size(); ++m) {
    for (int f = 0; f < kMergeFields; ++f) arrays.merges[f][m] = merges[m][f];
  }
  int next = 0;
  for (int t = 0; t < piece.teams; ++t) {
    for (const Item& item : items[static_cast<size_t>(t)]) {
      if (next == piece.max_items) throw internal_error("a plan of latent attention has more items than room");
      for (int f = 0; f < kItemFields; ++f) arrays.items[f][next] = item[f];
      ++next;
    }
    arrays.first_item[t + 1] = next;
  }
}

LatentPlanView view_latent_plan(const LatentPiece& piece, const int32_t* memory) {
  const Arrays<const int32_t> arrays(piece, memory);
  const auto& [first_token, first_block, rows, keys, first_packed, first_key, last_key, partial] = arrays.items;
  const auto& [merge_first, merge_last, merge_partial_first, merge_partial_last, merge_stride] = arrays.merges;
  return {piece.width, piece.teams,         arrays.first_item,  first_token, first_block, rows,
          keys,        first_packed,        first_key,          last_key,    partial,     merge_first,
          merge_last,  merge_partial_first, merge_partial_last, merge_stride};
}

const int32_t* filled_rows(const int32_t* memory) {
  return memory;
}

}  // namespace turbomind::cuda
