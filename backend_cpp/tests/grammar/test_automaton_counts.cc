// Repetitions within repetitions: what a state leaves out changes nothing that may come.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/automaton.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

using Kind = GrammarProgram::Kind;

struct Expression;
using Pointer = std::shared_ptr<const Expression>;

// A regular expression. Only kShort and kTokens have no derivative here.
struct Expression {
  enum Type { kNone, kNothing, kByte, kThen, kEither, kRepeat, kShort, kTokens };
  Type type;
  int low = 0, high = 0;  // kRepeat: how often, -1: no largest; kByte: low is the byte; others: high is the limit
  Pointer first, second;
};

Pointer make(Expression::Type type, Pointer first = nullptr, Pointer second = nullptr, int low = 0, int high = 0) {
  return std::make_shared<Expression>(Expression{type, low, high, std::move(first), std::move(second)});
}

constexpr int kNever = 1 << 20;

// The length of the shortest text; kNever: there is none.
int shortest(const Expression& e) {
  switch (e.type) {
    case Expression::kNone:
      return kNever;
    case Expression::kNothing:
      return 0;
    case Expression::kByte:
      return 1;
    case Expression::kThen:
      return std::min(kNever, shortest(*e.first) + shortest(*e.second));
    case Expression::kEither:
      return std::min(shortest(*e.first), shortest(*e.second));
    case Expression::kRepeat:
      return e.low == 0 ? 0 : std::min(kNever, e.low * shortest(*e.first));
    default:
      return shortest(*e.first) <= e.high ? shortest(*e.first) : kNever;
  }
}

bool has(const Expression& e, Expression::Type type) {
  return e.type == type || (e.first && has(*e.first, type)) || (e.second && has(*e.second, type));
}

// Whether a region that counts tokens can be left out of what is repeated. Then those that begin at different states of
// a text share a frame, and what ends one ends the other, unless they are distinguished by what repeats them.
bool shares_regions(const Expression& e) {
  if (e.type == Expression::kRepeat && shortest(*e.first) == 0 && has(*e.first, Expression::kTokens)) return true;
  return (e.first && shares_regions(*e.first)) || (e.second && shares_regions(*e.second));
}

// Brzozowski's derivative after a byte.
Pointer after(const Pointer& e, char byte) {
  const auto none = make(Expression::kNone);
  Pointer found = none;
  switch (e->type) {
    case Expression::kByte:
      if (e->low == byte) found = make(Expression::kNothing);
      break;
    case Expression::kThen:
      found = make(Expression::kThen, after(e->first, byte), e->second);
      if (shortest(*e->first) == 0) found = make(Expression::kEither, found, after(e->second, byte));
      break;
    case Expression::kEither:
      found = make(Expression::kEither, after(e->first, byte), after(e->second, byte));
      break;
    case Expression::kRepeat:
      if (e->high != 0) {
        const int low = std::max(0, e->low - 1);
        const int high = std::max(-1, e->high - 1);
        found = make(Expression::kThen, after(e->first, byte), make(Expression::kRepeat, e->first, nullptr, low, high));
      }
      break;
    default:
      break;
  }
  return shortest(*found) == kNever ? none : found;
}

// Writes an expression as nodes.
class Writer {
 public:
  // Repetitions as nodes that count, or as often as they may come.
  explicit Writer(bool counts) : counts_(counts) { program_.nodes.push_back({Kind::kReturn, 0, 0, 0, 0}); }

  GrammarProgram program(const Pointer& e) {
    const int32_t root = rule(e);
    std::swap(program_.starts[0], program_.starts[static_cast<size_t>(root)]);
    std::swap(program_.min_bytes[0], program_.min_bytes[static_cast<size_t>(root)]);
    return program_;
  }

 private:
  int32_t node(const GrammarProgram::Node& node) {
    program_.nodes.push_back(node);
    return static_cast<int32_t>(program_.nodes.size()) - 1;
  }

  int32_t either(const std::vector<int32_t>& nodes) {
    const auto first = static_cast<int32_t>(program_.lists.size());
    program_.lists.insert(program_.lists.end(), nodes.begin(), nodes.end());
    return node({Kind::kSplit, first, static_cast<int32_t>(nodes.size()), 0, 0});
  }

  // The first rule is kept for the root.
  int32_t rule(const Pointer& e) {
    if (program_.starts.empty()) {
      program_.starts.push_back(0);
      program_.min_bytes.push_back(0);
    }
    const int32_t start = write(*e, 0);
    program_.starts.push_back(start);
    program_.min_bytes.push_back(shortest(*e));
    return static_cast<int32_t>(program_.starts.size()) - 1;
  }

  int32_t write(const Expression& e, int32_t next) {
    switch (e.type) {
      case Expression::kByte:
        return node({Kind::kByte, e.low, 0, 0, next});
      case Expression::kThen:
        return write(*e.first, write(*e.second, next));
      case Expression::kEither:
        return either({write(*e.first, next), write(*e.second, next)});
      case Expression::kRepeat:
        if (!counts_) return repeat(e, next);
        return node({Kind::kRepeat, rule(e.first), shortest(*e.first) == 0 ? 0 : e.low, e.high, next});
      case Expression::kShort:
        return node({Kind::kRegion, rule(e.first), 0, GrammarProgram::kShortest, next});
      case Expression::kTokens:
        return node({Kind::kRegion, rule(e.first), e.high, GrammarProgram::kMaxTokens, next});
      default:
        return next;
    }
  }

  int32_t repeat(const Expression& e, int32_t next) {
    int32_t rest = next;
    if (e.high < 0) {
      rest = either({next, next});
      const int32_t again = write(*e.first, rest);
      program_.lists[static_cast<size_t>(program_.nodes[static_cast<size_t>(rest)].a)] = again;
    }
    for (int i = std::max(e.high, e.low); i > 0; --i) {
      rest = write(*e.first, rest);
      if (i > e.low) rest = either({rest, next});
    }
    return rest;
  }

  const bool counts_;
  GrammarProgram program_;
};

class Expressions {
 public:
  Expressions(unsigned seed, bool has_regions) : random_(seed), has_regions_(has_regions) {}

  Pointer next(int depth) {
    const auto below = [&] { return next(depth - 1); };
    Pointer second;  // this and the limit are made first: compilers order arguments differently
    int limit = 0;
    switch (depth == 0 ? 0 : random_() % 10) {
      case 0:
        return make(Expression::kByte, nullptr, nullptr, "abc"[random_() % 3]);
      case 1:
        second = random_() % 3 == 0 ? make(Expression::kNothing) : below();
        return make(Expression::kEither, below(), second);
      case 2:
      case 3:
        second = below();
        return make(Expression::kEither, below(), second);
      case 4:
      case 5:
        second = below();
        return make(Expression::kThen, below(), second);
      case 6:
        if (!has_regions_) return below();
        if (random_() % 2 == 0) return make(Expression::kShort, below());
        limit = static_cast<int>(random_() % 3);
        return make(Expression::kTokens, below(), nullptr, 0, limit);
      default: {
        const int low = static_cast<int>(random_() % 4);
        const int high = random_() % 4 == 0 ? -1 : low + static_cast<int>(random_() % 4);
        return make(Expression::kRepeat, below(), nullptr, low, high);
      }
    }
  }

 private:
  std::mt19937 random_;
  const bool has_regions_;
};

bool ends(Automaton& automaton, Automaton::State state) {
  return state != Automaton::kRejected && automaton.is_accepting(state);
}

// Compares all that may come, in texts of some more bytes. How many there were.
int compare(const Pointer& e, Automaton& automaton, Automaton::State state, int length) {
  CHECK_EQUAL(state != Automaton::kRejected, shortest(*e) != kNever);
  CHECK_EQUAL(ends(automaton, state), shortest(*e) == 0);
  if (state == Automaton::kRejected || length == 0) return 1;
  int count = 1;
  for (const char byte : {'a', 'b', 'c'}) {
    count += compare(after(e, byte), automaton, automaton.after(state, std::string(1, byte)), length - 1);
  }
  return count;
}

// The same for two programs, by tokens.
int compare(Automaton& one, Automaton::State in_one, Automaton& two, Automaton::State in_two, int length) {
  CHECK_EQUAL(in_one == Automaton::kRejected, in_two == Automaton::kRejected);
  if (in_one == Automaton::kRejected || in_two == Automaton::kRejected) return 1;
  in_one = one.begin_token(in_one);
  in_two = two.begin_token(in_two);
  CHECK_EQUAL(in_one == Automaton::kRejected, in_two == Automaton::kRejected);
  CHECK_EQUAL(ends(one, in_one), ends(two, in_two));
  if (in_one == Automaton::kRejected || in_two == Automaton::kRejected || length == 0) return 1;
  int count = 1;
  for (const char* token : {"a", "b", "c", "ab", "bc"}) {
    count += compare(one, one.after_token(in_one, 0, token), two, two.after_token(in_two, 0, token), length - 1);
  }
  return count;
}

}  // namespace

TEST(what_repetitions_in_repetitions_allow_is_what_derivatives_allow) {
  Expressions expressions(1, false);
  int texts = 0;
  for (int round = 0; round < 1500; ++round) {
    const Pointer e = expressions.next(5);
    Automaton automaton(Writer(true).program(e), round % 2 == 0 ? 0 : 3);
    automaton.set_budget(1 << 24);
    texts += compare(e, automaton, automaton.start(), 5);
  }
  CHECK(texts > 50'000);
}

TEST(what_regions_in_repetitions_allow_is_what_they_allow_without_counts) {
  Expressions expressions(2, true);
  int texts = 0;
  for (int round = 0; round < 1500; ++round) {
    const Pointer e = expressions.next(5);
    if (shares_regions(*e)) continue;
    Automaton counted(Writer(true).program(e)), written(Writer(false).program(e));
    counted.set_budget(1 << 24);
    written.set_budget(1 << 24);
    texts += compare(counted, counted.start(), written, written.start(), 4);
  }
  CHECK(texts > 50'000);
}

TEST(states_of_ambiguous_repetitions_are_few) {
  // root ::= (a{1,40} [ab]{1,40}){1,30}: many ways to read each text.
  const auto byte = [](char c) { return make(Expression::kByte, nullptr, nullptr, c); };
  const auto times = [](Pointer e, int high) { return make(Expression::kRepeat, std::move(e), nullptr, 1, high); };
  const Pointer both = make(Expression::kEither, byte('a'), byte('b'));
  const Pointer e = times(make(Expression::kThen, times(byte('a'), 40), times(both, 40)), 30);
  Automaton automaton(Writer(true).program(e));
  std::mt19937 random(3);
  Automaton::State state = automaton.start();
  for (int i = 0; i < 400; ++i) {
    automaton.set_budget(200);
    state = automaton.after(state, i > 0 && random() % 8 == 0 ? "b" : "a");
    CHECK(state != Automaton::kRejected);
  }
}

TEST(counts_between_two_others_are_left_out_where_those_allow_all) {
  // root ::= [ab]{20,100} a [ab]{20,100} b [ab]{30,60}: what came may be counted in hundreds of ways.
  const auto byte = [](char c) { return make(Expression::kByte, nullptr, nullptr, c); };
  const Pointer any = make(Expression::kEither, byte('a'), byte('b'));
  const auto times = [&](int low, int high) { return make(Expression::kRepeat, any, nullptr, low, high); };
  const auto then = [](Pointer first, Pointer second) { return make(Expression::kThen, first, second); };
  const Pointer e = then(times(20, 100), then(byte('a'), then(times(20, 100), then(byte('b'), times(30, 60)))));
  const std::pair<size_t, size_t> bounds[] = {{20, 100}, {20, 100}, {30, 60}};
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    Automaton automaton(Writer(true).program(e));
    Automaton::State state = automaton.start();
    std::set<std::pair<size_t, size_t>> ways = {{0, 0}};  // the part that is being read, and how much of it has come
    for (int i = 0; i < 270; ++i) {
      const char letter = random() % 4 == 0 ? 'b' : 'a';
      std::set<std::pair<size_t, size_t>> next;
      for (const auto& [part, count] : ways) {
        if (count < bounds[part].second) next.emplace(part, count + 1);
        if (part < 2 && count >= bounds[part].first && letter == "ab"[part]) next.emplace(part + 1, 0);
      }
      ways = std::move(next);
      automaton.set_budget(150);
      state = automaton.after(state, std::string(1, letter));
      CHECK_EQUAL(state != Automaton::kRejected, !ways.empty());
      const bool is_accepting =
          std::ranges::any_of(ways, [](const auto& way) { return way.first == 2 && way.second >= 30; });
      CHECK_EQUAL(ends(automaton, state), is_accepting);
      if (state == Automaton::kRejected) break;
    }
  }
}

TEST(what_may_be_nothing_is_not_tried_again_and_again) {
  // root ::= (a?){200,300} b
  const auto byte = [](char c) { return make(Expression::kByte, nullptr, nullptr, c); };
  const Pointer maybe = make(Expression::kEither, byte('a'), make(Expression::kNothing));
  const Pointer e = make(Expression::kThen, make(Expression::kRepeat, maybe, nullptr, 200, 300), byte('b'));
  Automaton automaton(Writer(true).program(e));
  for (const size_t letters : {0, 1, 299, 300, 301}) {
    automaton.set_budget(20 * (letters + 2));
    const Automaton::State state = automaton.after(automaton.start(), std::string(letters, 'a') + "b");
    CHECK_EQUAL(state != Automaton::kRejected, letters <= 300);
  }
}

}  // namespace turbomind::testing
