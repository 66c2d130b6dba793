#include "grammar/prepare_program.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>

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
      int64_t least = kNone;
      for (const int32_t next : program.list(node)) least = std::min(least, from(next));
      return least;
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

// The left-corner transform. Rules that can begin with each other are a cycle. A nonempty text of one of them begins
// with what one of the cycle can begin with otherwise; where a rule of the cycle has ended, what follows it in another
// may continue, until the rule itself has ended. A nullable part before the cycle is divided: it is left out, or a rule
// of its nonempty texts is called.
class LeftRecursion {
 public:
  LeftRecursion(Program& program, const std::vector<int32_t>& shortest)
      : program_(program), shortest_(shortest), starts_(program.starts), seen_(program.nodes.size(), 0) {
    for (size_t rule = 0; rule < starts_.size(); ++rule) {
      std::set<int32_t>& first = first_calls_.emplace_back();
      for_each_first(starts_[rule], [&](const Node& node) {
        if (node.is_call()) first.insert(called(node, static_cast<int32_t>(rule)));
      });
    }
  }

  // Whether there was any.
  bool rewrite() {
    const auto rules = static_cast<int32_t>(starts_.size());
    for (int32_t rule = 0; rule < rules; ++rule) {
      if (cycle_of(rule).empty()) continue;
      const int32_t start = program_.start(nonempty(rule));
      program_.starts[static_cast<size_t>(rule)] = is_nullable(rule) ? split({add({}), start}) : start;
    }
    return program_.nodes.size() > shortest_.size();
  }

 private:
  using Rules = std::set<int32_t>;

  bool is_nullable(int32_t rule) const { return shortest_[static_cast<size_t>(start(rule))] == 0; }
  // That of before.
  int32_t start(int32_t rule) const { return starts_[static_cast<size_t>(rule)]; }

  // Calls `visit` with the nodes that read, call or end where nothing has been read from a node on.
  template <class Visit>
  void for_each_first(int32_t from, const Visit& visit) {
    const size_t walk = ++walks_;
    for (std::vector<int32_t> todo{from}; !todo.empty();) {
      const auto number = static_cast<size_t>(todo.back());
      todo.pop_back();
      if (std::exchange(seen_[number], walk) == walk) continue;
      const Node node = program_.nodes[number];
      if (node.kind == Program::kSplit) {
        const auto nodes = program_.list(node);
        todo.insert(todo.end(), nodes.begin(), nodes.end());
        continue;
      }
      visit(node);
      const bool may_be_skipped = node.kind == Program::kRepeat && node.b == 0;
      if (node.is_call() && (may_be_skipped || is_nullable(node.a))) todo.push_back(node.next);
    }
  }

  // The rule that a node of `rule` calls. A rule with a limit is a region: what it calls within that is what the region
  // is of, since the limit holds already.
  int32_t called(const Node& node, int32_t rule) const {
    for (int32_t inner = node.a; is_region(inner);) {
      inner = program_.node(start(inner)).a;
      if (inner == rule) return rule;
    }
    return node.a;
  }

  bool is_region(int32_t rule) const {
    const Node& node = program_.node(start(rule));
    return node.kind == Program::kRegion && program_.node(node.next).kind == Program::kReturn;
  }

  Rules may_begin_with(int32_t rule) const {
    Rules found;
    for (std::vector<int32_t> todo{rule}; !todo.empty();) {
      const int32_t next = todo.back();
      todo.pop_back();
      for (const int32_t other : first_calls_[static_cast<size_t>(next)]) {
        if (found.insert(other).second) todo.push_back(other);
      }
    }
    return found;
  }

  // The rules that can begin with each other and with `rule`, itself among them; none where it does not.
  const Rules& cycle_of(int32_t rule) {
    const auto [known, is_new] = cycles_.try_emplace(rule, nullptr);
    if (!is_new) return *known->second;
    const auto cycle = std::make_shared<Rules>(may_begin_with(rule));
    if (!cycle->contains(rule)) cycle->clear();
    std::erase_if(*cycle, [&](int32_t other) { return !may_begin_with(other).contains(rule); });
    for (const int32_t other : *cycle) cycles_[other] = cycle;
    known->second = cycle;
    return *cycle;
  }

  // The rule of the texts of a rule that are not empty.
  int32_t nonempty(int32_t rule) {
    const Rules& cycle = cycle_of(rule);
    if (cycle.empty() && !is_nullable(rule)) return rule;
    const auto [known, is_new] = nonempty_.try_emplace(rule, static_cast<int32_t>(program_.starts.size()));
    const int32_t number = known->second;
    if (!is_new) return number;
    program_.starts.push_back(0);
    std::vector<int32_t> begins;
    std::map<int32_t, std::vector<int32_t>> continued{{rule, {add({})}}};  // what may follow a rule of the cycle
    std::map<int32_t, int32_t> ends;                                       // where one has ended
    for (const int32_t other : cycle) ends[other] = split({});
    if (cycle.empty()) {
      begin(rule, cycle, [](int32_t node) { return node; }, begins, continued);
    }
    for (const auto& [other, end] : ends) {
      std::map<int32_t, int32_t> copies;
      begin(other, cycle, [&, end = end](int32_t node) { return copy(node, end, copies); }, begins, continued);
    }
    for (const auto& [other, end] : ends) {
      const int32_t ways = split(continued[other]);
      program_.nodes[static_cast<size_t>(end)] = program_.node(ways);
    }
    const int32_t start = split(begins);
    program_.starts[static_cast<size_t>(number)] = start;
    return number;
  }

  // Adds what a rule begins with, if that is no rule of the cycle, and what follows such a one. `then`: the node that
  // takes a node's place after something has been read.
  template <class Then>
  void begin(int32_t rule, const Rules& cycle, const Then& then, std::vector<int32_t>& begins,
             std::map<int32_t, std::vector<int32_t>>& continued) {
    std::vector<Node> first;
    for_each_first(start(rule), [&](const Node& node) { first.push_back(node); });
    for (Node node : first) {
      if (node.kind == Program::kReturn || (node.kind == Program::kRepeat && node.c == 0)) continue;
      const bool is_call = node.is_call();
      const int32_t inner = is_call ? called(node, rule) : -1;
      const bool is_of_cycle = is_call && cycle.contains(inner);
      if (node.kind == Program::kWhenFull || (node.kind == Program::kRegion && is_of_cycle)) throw limited();
      node.next = then(node.next);
      if (is_of_cycle) {
        if (node.kind == Program::kRepeat && node.c != 1) {
          node.b = std::max(node.b - 1, 0);
          node.c = std::max(node.c - 1, -1);
          node.next = add(node);
        }
        continued[inner].push_back(node.next);
        continue;
      }
      // One that ends as soon as it may does so at once.
      if (node.kind == Program::kRegion && node.c == Program::kShortest && is_nullable(node.a)) continue;
      if (is_call) node.a = nonempty(node.a);
      if (node.kind == Program::kRepeat) node.b = std::max(node.b, 1);
      begins.push_back(add(node));
    }
  }

  static Error limited() { return invalid_argument("response_format: rules that begin with each other have limits"); }

  // A copy of all nodes of a rule from one on, with another end.
  int32_t copy(int32_t from, int32_t end, std::map<int32_t, int32_t>& copies) {
    std::vector<int32_t> todo;
    const auto copied = [&](int32_t number) {
      if (program_.node(number).kind == Program::kReturn) return end;
      const auto [known, is_new] = copies.try_emplace(number, static_cast<int32_t>(program_.nodes.size()));
      if (is_new) todo.push_back(add(program_.node(number)));
      return known->second;
    };
    const int32_t first = copied(from);
    while (!todo.empty()) {
      const auto number = static_cast<size_t>(todo.back());
      todo.pop_back();
      Node node = program_.nodes[number];
      if (node.kind == Program::kSplit) {
        const auto nodes = program_.list(node);
        std::vector<int32_t> ways(nodes.begin(), nodes.end());
        std::ranges::transform(ways, ways.begin(), copied);
        node.a = list(ways);
      } else if (!node.is_end()) {
        node.next = copied(node.next);
      }
      program_.nodes[number] = node;
    }
    return first;
  }

  int32_t add(const Node& node) {
    if (program_.nodes.size() > Program::kMaxNodes)
      throw invalid_argument("response_format: it is too large; make it smaller");
    program_.nodes.push_back(node);
    return static_cast<int32_t>(program_.nodes.size()) - 1;
  }

  int32_t list(const std::vector<int32_t>& nodes) {
    program_.lists.insert(program_.lists.end(), nodes.begin(), nodes.end());
    return static_cast<int32_t>(program_.lists.size() - nodes.size());
  }

  int32_t split(const std::vector<int32_t>& nodes) {
    return add({Program::kSplit, list(nodes), static_cast<int32_t>(nodes.size()), 0, 0});
  }

  Program& program_;
  const std::vector<int32_t>& shortest_;
  const std::vector<int32_t> starts_;
  std::vector<size_t> seen_;  // the last walk that met a node
  size_t walks_ = 0;
  std::vector<Rules> first_calls_;  // of each rule, before anything is read
  std::map<int32_t, std::shared_ptr<Rules>> cycles_;
  std::map<int32_t, int32_t> nonempty_;
};

}  // namespace

bool prepare(Program& program) {
  std::vector<int32_t> shortest = shortest_texts(program);
  const auto of_rule = [&](int32_t rule) { return shortest[static_cast<size_t>(program.start(rule))]; };
  if (of_rule(0) == kNone) return false;
  for (size_t i = 0; i < shortest.size(); ++i) {
    Node& node = program.nodes[i];
    if (shortest[i] == kNone) node = {Program::kSplit, 0, 0, 0, 0};
    // A part that may be empty may be empty as often as is wanted.
    if (node.kind == Program::kRepeat && of_rule(node.a) == 0 && (node.c < 0 || node.b <= node.c)) node.b = 0;
  }
  if (LeftRecursion(program, shortest).rewrite()) shortest = shortest_texts(program);
  program.least.clear();
  for (size_t rule = 0; rule < program.starts.size(); ++rule) {
    program.least.push_back(of_rule(static_cast<int32_t>(rule)));
  }
  return true;
}

}  // namespace turbomind
