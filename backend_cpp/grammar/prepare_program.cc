#include "grammar/prepare_program.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>

#include "base/error.h"

namespace turbomind {

namespace {

using Program = GrammarProgram;
using Node = Program::Node;

constexpr int32_t kNone = 1 << 30;  // there is no text

// The bytes of the shortest text from each node to the end of its rule, until nothing gets shorter.
std::vector<int32_t> shortest_texts(const Program& program) {
  std::vector<int32_t> shortest(program.nodes.size(), kNone);
  const auto from = [&](int32_t node) { return int64_t{shortest[static_cast<size_t>(node)]}; };
  const auto of = [&](const Node& node) -> int64_t {
    if (node.is_end()) return 0;
    if (node.kind == Program::kSplit) {
      int64_t min_bytes = kNone;
      for (const int32_t next : program.list(node)) min_bytes = std::min(min_bytes, from(next));
      return min_bytes;
    }
    if (node.kind == Program::kRepeat) return from(node.next) + (node.b > 0 ? node.b * from(program.start(node.a)) : 0);
    if (node.is_call()) return from(node.next) + from(program.start(node.a));
    // A class of no character, and a list of no token, let nothing come.
    return node.kind == Program::kByte || node.b > 0 || node.c != 0 ? from(node.next) + 1 : kNone;
  };
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (size_t i = 0; i < shortest.size(); ++i) {
      const auto found = static_cast<int32_t>(std::min<int64_t>(of(program.nodes[i]), kNone));
      if (found >= shortest[i]) continue;
      shortest[i] = found;
      has_changed = true;
    }
  }
  return shortest;
}

// A rule that can begin with itself; -1: there is none. It is among those that are left when rules that can begin with
// none of the others have been taken away, again and again.
int32_t left_recursive_rule(const Program& program, const std::vector<int32_t>& shortest) {
  std::vector<std::set<int32_t>> first(program.starts.size());  // rules that each can begin with
  std::vector<std::vector<int32_t>> users(program.starts.size());
  for (size_t rule = 0; rule < first.size(); ++rule) {
    std::vector<int32_t> todo{program.starts[rule]};
    std::set<int32_t> seen(todo.begin(), todo.end());
    const auto follow = [&](int32_t node) {
      if (seen.insert(node).second) todo.push_back(node);
    };
    while (!todo.empty()) {
      const Node& node = program.node(todo.back());
      todo.pop_back();
      if (node.kind == Program::kSplit) std::ranges::for_each(program.list(node), follow);
      if (!node.is_call()) continue;
      if (first[rule].insert(node.a).second) users[static_cast<size_t>(node.a)].push_back(static_cast<int32_t>(rule));
      const bool is_nullable = shortest[static_cast<size_t>(program.start(node.a))] == 0;
      if (is_nullable || (node.kind == Program::kRepeat && node.b == 0)) follow(node.next);
    }
  }
  std::vector<size_t> left(first.size());  // how many of `first` may be
  std::vector<int32_t> sound;
  const auto take_if_sound = [&](int32_t rule) {
    if (left[static_cast<size_t>(rule)] == 0) sound.push_back(rule);
  };
  for (size_t rule = 0; rule < first.size(); ++rule) {
    left[rule] = first[rule].size();
    take_if_sound(static_cast<int32_t>(rule));
  }
  for (size_t i = 0; i < sound.size(); ++i) {
    for (const int32_t user : users[static_cast<size_t>(sound[i])]) {
      --left[static_cast<size_t>(user)];
      take_if_sound(user);
    }
  }
  const auto is_left = [&](int32_t rule) { return left[static_cast<size_t>(rule)] > 0; };
  auto rule = static_cast<int32_t>(std::ranges::find_if(left, std::identity()) - left.begin());
  if (sound.size() == first.size()) return -1;
  for (std::set<int32_t> seen; seen.insert(rule).second;) {
    rule = *std::ranges::find_if(first[static_cast<size_t>(rule)], is_left);
  }
  return rule;
}

}  // namespace

bool prepare(Program& program, const std::vector<std::string>& names) {
  const std::vector<int32_t> shortest = shortest_texts(program);
  const auto of_rule = [&](int32_t rule) { return shortest[static_cast<size_t>(program.start(rule))]; };
  if (of_rule(0) == kNone) return false;
  for (size_t i = 0; i < shortest.size(); ++i) {
    Node& node = program.nodes[i];
    if (shortest[i] == kNone) node = {Program::kSplit, 0, 0, 0, 0};
    // A part that may be empty may be empty as often as is wanted.
    if (node.kind == Program::kRepeat && of_rule(node.a) == 0 && (node.c < 0 || node.b <= node.c)) node.b = 0;
  }
  if (const int32_t rule = left_recursive_rule(program, shortest); rule >= 0) {
    throw invalid_argument("the rule '" + names.at(static_cast<size_t>(rule)) +
                           "' begins with itself by way of another; write what is repeated with * or +");
  }
  program.min_bytes.clear();
  for (size_t rule = 0; rule < program.starts.size(); ++rule) {
    program.min_bytes.push_back(of_rule(static_cast<int32_t>(rule)));
  }
  return true;
}

}  // namespace turbomind
