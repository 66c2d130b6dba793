#include "engine/grammar/program.h"

#include <algorithm>

namespace turbomind {

bool GrammarProgram::is_sound() const {
  const auto is_node = [&](int32_t number) { return number >= 0 && static_cast<size_t>(number) < nodes.size(); };
  const auto is_list = [&](int32_t first, int64_t count) {
    return first >= 0 && count >= 0 && first + count <= static_cast<int64_t>(lists.size());
  };
  if (starts.empty() || !std::ranges::all_of(starts, is_node)) return false;
  if (!least.empty() && least.size() != starts.size()) return false;
  return std::ranges::all_of(nodes, [&](const Node& node) {
    if (node.is_end()) return true;
    if (node.kind == kSplit) return is_list(node.a, node.b) && std::ranges::all_of(list(node), is_node);
    if (!is_node(node.next)) return false;
    if (node.kind == kClass || node.kind == kBytes) return is_list(node.a, int64_t{2} * node.b);
    if (node.kind == kToken) return is_list(node.a, node.b);
    if (node.kind == kRegion && (node.b < 0 || node.c < kMaxTokens || node.c > kShortest)) return false;
    if (node.is_call()) return node.a >= 0 && static_cast<size_t>(node.a) < starts.size();
    return node.kind == kByte && node.a >= 0 && node.a < 256;
  });
}

}  // namespace turbomind
