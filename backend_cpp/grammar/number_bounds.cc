#include "grammar/number_bounds.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/grammar/automaton.h"

namespace turbomind {

namespace {

using Program = GrammarProgram;
using Node = Program::Node;

constexpr std::string_view kBytes = "+-.0123456789Ee";  // that numbers are written with, sorted
constexpr int kIntegerDigits = 19;                      // 64 bits
constexpr int kSignificantDigits = 17;                  // tell all doubles apart
constexpr int kExponentDigits = 3;
constexpr int kLongestValue = 64;  // bytes; a double as it is written, or an integer, is shorter

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

bool reads_numbers(const Program& program, const Node& node) {
  const auto is_in_numbers = [](int32_t first, int32_t last) {
    while (first <= last && first < 0x80 && kBytes.find(static_cast<char>(first)) != std::string_view::npos) ++first;
    return first > last;
  };
  if (node.kind == Program::kByte) return is_in_numbers(node.a, node.a);
  if (node.kind != Program::kBytes && (node.kind != Program::kClass || node.c != 0)) return false;
  const auto pairs = program.list(node);
  for (size_t i = 0; i < pairs.size(); i += 2) {
    if (!is_in_numbers(pairs[i], pairs[i + 1])) return false;
  }
  return true;
}

// Rules that read nothing but bytes of numbers, and that others call.
std::vector<int32_t> number_rules(const Program& program, const std::vector<bool>& is_of_schema) {
  const size_t rules = program.starts.size();
  std::vector<std::set<int32_t>> callers(rules);
  std::vector<bool> reads_others(rules);
  std::vector<int32_t> todo;
  const auto note = [&](int32_t rule) {
    if (!reads_others[static_cast<size_t>(rule)]) todo.push_back(rule);
    reads_others[static_cast<size_t>(rule)] = true;
  };
  std::vector<size_t> seen(program.nodes.size(), rules);
  for (size_t rule = 0; rule < rules; ++rule) {
    const auto own = static_cast<int32_t>(rule);
    if (rule >= is_of_schema.size() || !is_of_schema[rule]) note(own);
    for (std::vector<int32_t> nodes{program.start(own)}; !nodes.empty();) {
      const auto number = static_cast<size_t>(nodes.back());
      nodes.pop_back();
      if (std::exchange(seen[number], rule) == rule) continue;
      const Node& node = program.nodes[number];
      if (node.kind == Program::kSplit) {
        const auto ways = program.list(node);
        nodes.insert(nodes.end(), ways.begin(), ways.end());
        continue;
      }
      if (node.is_end()) continue;
      nodes.push_back(node.next);
      if (node.kind == Program::kCall || node.kind == Program::kRepeat) {
        callers[static_cast<size_t>(node.a)].insert(own);
        continue;
      }
      if (!reads_numbers(program, node)) note(own);
    }
  }
  while (!todo.empty()) {
    const int32_t rule = todo.back();
    todo.pop_back();
    for (const int32_t caller : callers[static_cast<size_t>(rule)]) note(caller);
  }
  std::vector<int32_t> found;
  for (size_t rule = 0; rule < rules; ++rule) {
    const auto is_other = [&](int32_t caller) { return reads_others[static_cast<size_t>(caller)]; };
    const bool is_called = rule == 0 || std::ranges::any_of(callers[rule], is_other);
    if (is_called && !reads_others[rule]) found.push_back(static_cast<int32_t>(rule));
  }
  return found;
}

class NumberBounds {
 public:
  explicit NumberBounds(Program& program) : program_(program), automaton_(program) {}

  // Whether a rule was replaced by one with bounds.
  bool bound(int32_t rule) {
    automaton_.set_budget(SIZE_MAX);
    const Place start = automaton_.at_rule(rule);
    bool is_integer = true;
    std::set<Place> ends{start};  // of texts that grow by a byte each time
    for (int size = 0; size <= kLongestValue && !ends.empty(); ++size) {
      std::set<Place> further;
      for (const Place place : ends) {
        for (const char byte : kBytes) {
          const Place next = after(place, byte);
          if (next == Automaton::kNowhere) continue;
          further.insert(next);
          is_integer = is_integer && (is_digit(byte) || byte == '-');
        }
      }
      ends = std::move(further);
    }
    if (ends.empty()) return false;
    digits_ = std::max(is_integer ? kIntegerDigits : kSignificantDigits, program_.least[static_cast<size_t>(rule)]);
    nodes_.clear();
    program_.starts[static_cast<size_t>(rule)] = node_of({start, kZeros, digits_});
    while (!todo_.empty()) {
      const State state = todo_.back();
      todo_.pop_back();
      write(state);
    }
    return true;
  }

 private:
  using Place = Automaton::Place;
  enum Phase { kZeros, kSignificant, kExponent };
  using State = std::tuple<Place, Phase, int>;  // and how many digits of the phase may come

  Place after(Place place, char byte) { return automaton_.after(place, static_cast<uint8_t>(byte)); }

  State after(const State& state, char byte) {
    auto [place, phase, left] = state;
    place = after(place, byte);
    if (byte == 'e' || byte == 'E') return {place, kExponent, kExponentDigits};
    if (!is_digit(byte)) return {place, phase, left};
    if (phase == kZeros && byte != '0') return {place, kSignificant, digits_ - 1};
    return {left == 0 ? Automaton::kNowhere : place, phase, left - 1};
  }

  int32_t node_of(const State& state) {
    const auto [known, is_new] = nodes_.try_emplace(state, static_cast<int32_t>(program_.nodes.size()));
    if (is_new) {
      program_.nodes.push_back({});
      todo_.push_back(state);
    }
    return known->second;
  }

  void write(const State& state) {
    std::map<State, std::vector<int32_t>> pairs;  // of bytes
    for (const char byte : kBytes) {
      const State next = after(state, byte);
      if (std::get<0>(next) == Automaton::kNowhere) continue;
      std::vector<int32_t>& of_next = pairs[next];
      if (!of_next.empty() && of_next.back() == byte - 1) {
        of_next.back() = byte;
      } else {
        of_next.insert(of_next.end(), 2, byte);
      }
    }
    std::vector<int32_t> ways;
    for (const auto& [next, bytes] : pairs) {
      const int32_t target = node_of(next);
      ways.push_back(add({Program::kBytes, list(bytes), static_cast<int32_t>(bytes.size()) / 2, 0, target}));
    }
    if (automaton_.may_end(std::get<0>(state))) ways.push_back(add({Program::kReturn, 0, 0, 0, 0}));
    const Node split{Program::kSplit, list(ways), static_cast<int32_t>(ways.size()), 0, 0};
    program_.nodes[static_cast<size_t>(nodes_.at(state))] = split;
  }

  int32_t add(const Node& node) {
    program_.nodes.push_back(node);
    return static_cast<int32_t>(program_.nodes.size()) - 1;
  }

  int32_t list(const std::vector<int32_t>& values) {
    program_.lists.insert(program_.lists.end(), values.begin(), values.end());
    return static_cast<int32_t>(program_.lists.size() - values.size());
  }

  Program& program_;
  Automaton automaton_;  // of the program as it was
  int digits_ = 0;
  std::map<State, int32_t> nodes_;
  std::vector<State> todo_;  // that have a node, which is not yet written
};

}  // namespace

bool bound_numbers(GrammarProgram& program, const std::vector<bool>& is_of_schema) {
  const std::vector<int32_t> rules = number_rules(program, is_of_schema);
  if (rules.empty()) return false;
  NumberBounds bounds(program);
  bool has_any = false;
  for (const int32_t rule : rules) has_any |= program.nodes.size() < Program::kMaxNodes && bounds.bound(rule);
  return has_any;
}

}  // namespace turbomind
