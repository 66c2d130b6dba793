#include "engine/grammar/program.h"

#include <algorithm>

namespace turbomind {

namespace {

bool is_below(int32_t number, int64_t end) {
  return number >= 0 && number < end;
}

}  // namespace

bool GrammarProgram::is_sound() const {
  const auto is_node = [this](int32_t number) { return is_below(number, std::ssize(nodes)); };
  if (starts.empty() || !std::ranges::all_of(starts, is_node)) return false;
  if (!least.empty() && least.size() != starts.size()) return false;
  return std::ranges::all_of(nodes, [&](const Node& node) {
    const bool has_next = !node.is_end() && node.kind != kSplit;
    return (!has_next || is_node(node.next)) && has_sound_content(node);
  });
}

bool GrammarProgram::has_sound_content(const Node& node) const {
  const auto is_list = [&](int64_t count) { return node.a >= 0 && count >= 0 && node.a + count <= std::ssize(lists); };
  const auto is_node = [this](int32_t number) { return is_below(number, std::ssize(nodes)); };
  if (node.is_end()) return true;
  if (node.kind == kSplit) return is_list(node.b) && std::ranges::all_of(list(node), is_node);
  if (node.kind == kClass || node.kind == kBytes) return is_list(int64_t{2} * node.b);
  if (node.kind == kToken) return is_list(node.b);
  if (node.kind == kRegion && (node.b < 0 || !is_below(node.c, kShortest + 1))) return false;
  if (node.is_call()) return is_below(node.a, std::ssize(starts));
  return node.kind == kByte && is_below(node.a, 256);
}

}  // namespace turbomind
