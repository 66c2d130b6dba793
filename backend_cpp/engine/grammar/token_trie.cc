#include "engine/grammar/token_trie.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>
#include <utility>

namespace turbomind {

void allow(std::vector<int32_t>& mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= static_cast<int32_t>(uint32_t{1} << token % 32);
}

int32_t only_token(const std::vector<int32_t>& mask) {
  int32_t only = -1;
  for (size_t word = 0; word < mask.size(); ++word) {
    const auto bits = static_cast<uint32_t>(mask[word]);
    if (bits == 0) continue;
    if (only >= 0 || (bits & (bits - 1)) != 0) return -1;
    only = static_cast<int32_t>(word) * 32 + std::countr_zero(bits);
  }
  return only;
}

TokenTrie::TokenTrie(std::vector<std::string> vocabulary) : vocabulary_(std::move(vocabulary)) {
  std::vector<int32_t> order(vocabulary_.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t token) { return bytes_of(token).empty(); });
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return bytes_of(a) < bytes_of(b); });
  std::vector<uint32_t> open;  // nodes on the way to the last one
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  std::string_view last;
  for (const int32_t token : order) {
    const std::string_view bytes = bytes_of(token);
    const auto common = std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin();
    close_to(static_cast<size_t>(common));
    while (open.size() < bytes.size()) {
      const auto depth = static_cast<uint32_t>(open.size());
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({static_cast<uint8_t>(bytes[depth]), depth, 0, static_cast<uint32_t>(tokens_.size())});
    }
    tokens_.push_back(token);
    last = bytes;
    max_token_bytes_ = std::max(max_token_bytes_, bytes.size());
  }
  close_to(0);
  nodes_.push_back({0, 0, static_cast<uint32_t>(nodes_.size()), static_cast<uint32_t>(tokens_.size())});
}

void TokenTrie::find_allowed(Automaton& automaton, Automaton::State state, std::vector<int32_t>& mask) const {
  std::vector<Automaton::State> states(max_token_bytes_ + 1, state);  // after each number of bytes
  for (uint32_t i = 0; i + 1 < nodes_.size();) {
    const Node& node = nodes_[i];
    const Automaton::State next = automaton.after(states[node.depth], node.byte);
    if (next == Automaton::kRejected) {
      i = node.end;
      continue;
    }
    states[node.depth + 1] = next;
    for (uint32_t k = node.tokens; k < nodes_[i + 1].tokens; ++k) allow(mask, tokens_[k]);
    ++i;
  }
}

}  // namespace turbomind
