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

// A byte that is a piece of a SentencePiece vocabulary has a token of its own before that one.
int32_t TokenTrie::token_at(size_t node) const {
  const auto begin = tokens_.begin() + nodes_[node].tokens;
  const auto end = tokens_.begin() + nodes_[node + 1].tokens;
  return begin == end ? -1 : *std::max_element(begin, end);
}

int32_t TokenTrie::longest(std::string_view text) const {
  int32_t found = -1;
  size_t end = nodes_.size() - 1;  // of the nodes that begin with the bytes so far
  for (size_t node = 0, depth = 0; depth < text.size(); ++depth, ++node) {
    while (node < end && nodes_[node].byte != static_cast<uint8_t>(text[depth])) node = nodes_[node].end;
    if (node >= end) break;
    end = nodes_[node].end;
    if (const int32_t token = token_at(node); token >= 0) found = token;
  }
  return found;
}

int32_t TokenTrie::token_of(std::string_view text) const {
  const int32_t token = longest(text);
  return token >= 0 && bytes_of(token).size() == text.size() ? token : -1;
}

size_t TokenTrie::add_character(std::string_view text, size_t at, std::vector<size_t>& pieces) const {
  size_t end = at + 1;
  while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
  const size_t step = token_of(text.substr(at, end - at)) >= 0 ? end - at : 1;
  for (; at < end; at += step) pieces.push_back(at);
  return end;
}

std::vector<int32_t> TokenTrie::merge(std::string_view text, std::vector<size_t> pieces) const {
  const auto token_between = [&](size_t piece, size_t end) {
    if (end > pieces.size()) return -1;
    const size_t after = end < pieces.size() ? pieces[end] : text.size();
    return token_of(text.substr(pieces[piece], after - pieces[piece]));
  };
  std::vector<int32_t> pairs;  // the token of each piece with its next one
  for (size_t i = 0; i < pieces.size(); ++i) pairs.push_back(token_between(i, i + 2));
  const auto rank = [](int32_t token) { return static_cast<uint32_t>(token); };  // none: the last
  for (;;) {
    const auto first = std::ranges::min_element(pairs, {}, rank);
    if (first == pairs.end() || *first < 0) break;
    const auto at = first - pairs.begin();
    pieces.erase(pieces.begin() + at + 1);
    pairs.erase(first);
    const auto piece = static_cast<size_t>(at);
    pairs[piece] = token_between(piece, piece + 2);
    if (piece > 0) pairs[piece - 1] = token_between(piece - 1, piece + 1);
  }
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < pieces.size(); ++i) tokens.push_back(token_between(i, i + 1));
  return std::ranges::count(tokens, -1) > 0 ? std::vector<int32_t>() : tokens;
}

bool TokenTrie::is_made_of_pairs(int32_t token) const {
  const auto [known, is_new] = made_of_pairs_.try_emplace(token);
  if (is_new) {
    const std::string_view bytes = bytes_of(token);
    std::vector<size_t> pieces;
    for (size_t at = 0; at < bytes.size();) at = add_character(bytes, at, pieces);
    known->second = merge(bytes, std::move(pieces)) == std::vector{token};
  }
  return known->second;
}

std::vector<int32_t> TokenTrie::encode(std::string_view text) const {
  std::vector<size_t> pieces;
  for (size_t at = 0; at < text.size();) {
    const int32_t token = longest(text.substr(at));
    if (token < 0 || is_made_of_pairs(token)) {
      at = add_character(text, at, pieces);
    } else {
      pieces.push_back(at);
      at += bytes_of(token).size();
    }
  }
  return merge(text, std::move(pieces));
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
