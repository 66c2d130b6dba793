#include "engine/grammar/program.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace turbomind {

namespace {

bool is_below(int32_t number, int64_t end) {
  return number >= 0 && number < end;
}

}  // namespace

GrammarProgram GrammarProgram::read(std::string_view bytes) {
  GrammarProgram program;
  const auto take = [&](void* to, size_t size) {
    if (size > bytes.size()) throw internal_error("response_format: its program is broken");
    if (size > 0) std::memcpy(to, bytes.data(), size);
    bytes.remove_prefix(size);
  };
  const auto get = [&](auto& list) {
    uint32_t length = 0;
    take(&length, sizeof(length));
    if (length > bytes.size()) throw internal_error("response_format: its program is broken");
    list.resize(length);
    take(list.data(), list.size() * sizeof(list[0]));
  };
  get(program.nodes);
  get(program.lists);
  get(program.starts);
  get(program.min_bytes);
  if (!program.is_sound()) throw internal_error("response_format: its program is broken");
  return program;
}

bool GrammarProgram::is_sound() const {
  const auto is_node = [this](int32_t number) { return is_below(number, std::ssize(nodes)); };
  if (starts.empty() || !std::ranges::all_of(starts, is_node)) return false;
  if (!min_bytes.empty() && min_bytes.size() != starts.size()) return false;
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
  if (node.kind == kBytes) return is_list(int64_t{2} * node.b);
  if (node.kind == kToken) return is_list(node.b);
  if (node.kind == kRegion && (node.b < 0 || !is_below(node.c, kShortest + 1))) return false;
  if (node.is_call()) return is_below(node.a, std::ssize(starts));
  return node.kind == kByte && is_below(node.a, 256);
}

}  // namespace turbomind
