#include "grammar/program_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace turbomind {

namespace {

using Node = Automaton::Node;
using Flags = std::vector<bool>;

bool calls(const Node& node) {
  return node.kind == Automaton::kCall || node.kind == Automaton::kRegion || node.kind == Automaton::kRepeat;
}

// The nodes from which the end of their rule can be reached, past nodes that `may_pass`.
Flags reaches_end(const Automaton::Program& program, const std::function<bool(const Node&)>& may_pass) {
  Flags reaches(program.nodes.size(), false);
  const auto at = [&](int32_t node) { return reaches[static_cast<size_t>(node)]; };
  const auto is_passable = [&](const Node& node) {
    if (node.kind == Automaton::kReturn || node.kind == Automaton::kWhenFull) return true;
    if (node.kind == Automaton::kSplit) {
      const auto first = program.lists.begin() + node.a;
      return std::any_of(first, first + node.b, at);
    }
    if (!at(node.next)) return false;
    if (!calls(node)) return may_pass(node);
    const bool may_skip = node.kind == Automaton::kRepeat && node.b == 0;
    return may_skip || at(program.starts[static_cast<size_t>(node.a)]);
  };
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (size_t i = 0; i < reaches.size(); ++i) {
      if (reaches[i] || !is_passable(program.nodes[i])) continue;
      reaches[i] = has_changed = true;
    }
  }
  return reaches;
}

}  // namespace

bool remove_dead_ends(Automaton::Program& program) {
  const Flags reaches = reaches_end(program, [&](const Node& node) {
    // A class of no character, and a list of no token, let nothing come.
    return node.kind == Automaton::kByte || node.b > 0 || node.c != 0;
  });
  for (size_t i = 0; i < reaches.size(); ++i) {
    if (!reaches[i]) program.nodes[i] = {Automaton::kSplit, 0, 0, 0, 0};
  }
  return reaches[static_cast<size_t>(program.starts[0])];
}

// A call in last place leaves nothing to return to: to come to itself by such calls alone is to be where one was.
bool is_left_recursive(const Automaton::Program& program) {
  const Flags is_empty = reaches_end(program, [](const Node&) { return false; });
  struct Call {
    int32_t rule;
    bool is_last;
  };
  std::vector<std::vector<Call>> first_calls(program.starts.size());  // of a rule, before it reads
  std::vector<size_t> seen_in(program.nodes.size(), 0);
  for (size_t rule = 0; rule < first_calls.size(); ++rule) {
    std::vector<int32_t> todo{program.starts[rule]};
    while (!todo.empty()) {
      const auto number = static_cast<size_t>(todo.back());
      todo.pop_back();
      if (std::exchange(seen_in[number], rule + 1) == rule + 1) continue;
      const Node& node = program.nodes[number];
      if (node.kind == Automaton::kSplit) {
        todo.insert(todo.end(), program.lists.begin() + node.a, program.lists.begin() + node.a + node.b);
      } else if (calls(node)) {
        const bool leads_to_end = program.nodes[static_cast<size_t>(node.next)].kind == Automaton::kReturn;
        first_calls[rule].push_back({node.a, node.kind == Automaton::kCall && leads_to_end});
        const bool may_skip = node.kind == Automaton::kRepeat && node.b == 0;
        if (may_skip || is_empty[static_cast<size_t>(program.starts[static_cast<size_t>(node.a)])]) {
          todo.push_back(node.next);
        }
      }
    }
  }
  std::vector<size_t> met_in(first_calls.size(), 0);
  size_t walk = 0;
  const auto leads_to = [&](int32_t from, size_t rule) {
    ++walk;
    std::vector<int32_t> todo{from};
    while (!todo.empty()) {
      const auto number = static_cast<size_t>(todo.back());
      todo.pop_back();
      if (number == rule) return true;
      if (std::exchange(met_in[number], walk) == walk) continue;
      for (const Call& call : first_calls[number]) todo.push_back(call.rule);
    }
    return false;
  };
  for (size_t rule = 0; rule < first_calls.size(); ++rule) {
    for (const Call& call : first_calls[rule]) {
      if (!call.is_last && leads_to(call.rule, rule)) return true;
    }
  }
  return false;
}

}  // namespace turbomind
