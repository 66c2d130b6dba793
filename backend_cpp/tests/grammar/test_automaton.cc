// Names of states in a grammar, and what they leave out, which changes nothing that may come.
#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "engine/grammar/automaton.h"
#include "engine/grammar/token_trie.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

using Kind = GrammarProgram::Kind;

// root ::= list ";"    list ::= item ("," list)?    item ::= [a-z]{1,3}    a class of its own for the letter
GrammarProgram list_program() {
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},  // 0
      {Kind::kByte, ';', 0, 0, 0},  // 1
      {Kind::kCall, 1, 0, 0, 1},    // 2: root
      {Kind::kCall, 1, 0, 0, 0},    // 3: list, in last state
      {Kind::kByte, ',', 0, 0, 3},  // 4
      {Kind::kSplit, 2, 2, 0, 0},   // 5: "," list, or nothing
      {Kind::kCall, 2, 0, 0, 5},    // 6: list
      {Kind::kRepeat, 3, 1, 3, 0},  // 7: item
      {Kind::kBytes, 0, 1, 0, 0},   // 8: letter
  };
  program.lists = {'a', 'z', 4, 0};
  program.starts = {2, 6, 7, 8};
  return program;
}

constexpr int kNever = 1 << 20;

struct Expression;
using Pointer = std::shared_ptr<const Expression>;

// A regular expression, with regions.
struct Expression {
  enum Type { kNone, kNothing, kByte, kThen, kEither, kRepeat, kShort, kTokens };
  Type type;
  Pointer first, second;
  int low, high;            // kRepeat: how often, -1: no largest; kByte: low is the byte; kTokens: high is the limit
  int shortest;             // the length of the shortest text; kNever: there is none
  bool has_tokens, shares;  // a region that counts tokens; one that can be left out of what is repeated
};

Pointer make(Expression::Type type, Pointer first = nullptr, Pointer second = nullptr, int low = 0, int high = 0) {
  const int one = first ? first->shortest : 0, other = second ? second->shortest : 0;
  int shortest = one;
  if (type == Expression::kNone) shortest = kNever;
  if (type == Expression::kByte) shortest = 1;
  if (type == Expression::kThen) shortest = std::min(kNever, one + other);
  if (type == Expression::kEither) shortest = std::min(one, other);
  if (type == Expression::kRepeat) shortest = low == 0 ? 0 : std::min(kNever, low * one);
  if (type >= Expression::kShort && one > high) shortest = kNever;
  const auto has = [&](bool Expression::* member) {
    return (first && (*first).*member) || (second && (*second).*member);
  };
  const bool has_tokens = has(&Expression::has_tokens),
             leaves_out = type == Expression::kRepeat && one == 0 && has_tokens;
  const bool shares = leaves_out || has(&Expression::shares);
  return std::make_shared<Expression>(Expression{type, std::move(first), std::move(second), low, high, shortest,
                                                 has_tokens || type == Expression::kTokens, shares});
}

Pointer byte(char c) {
  return make(Expression::kByte, nullptr, nullptr, c);
}
Pointer then(Pointer first, Pointer second) {
  return make(Expression::kThen, std::move(first), std::move(second));
}
Pointer either(Pointer first, Pointer second) {
  return make(Expression::kEither, std::move(first), std::move(second));
}
Pointer times(int low, int high, Pointer e) {
  return make(Expression::kRepeat, std::move(e), nullptr, low, high);
}

// Brzozowski's derivative after a byte. Regions have none.
Pointer after(const Pointer& e, char letter) {
  Pointer found = make(e->type == Expression::kByte && e->low == letter ? Expression::kNothing : Expression::kNone);
  if (e->type == Expression::kThen) found = then(after(e->first, letter), e->second);
  if (e->type == Expression::kEither) found = after(e->first, letter);
  if (e->type == Expression::kEither || (e->type == Expression::kThen && e->first->shortest == 0)) {
    found = either(found, after(e->second, letter));
  }
  if (e->type == Expression::kRepeat && e->high != 0) {
    found = then(after(e->first, letter), times(std::max(0, e->low - 1), std::max(-1, e->high - 1), e->first));
  }
  return found->shortest == kNever ? make(Expression::kNone) : found;
}

// Writes an expression as nodes: repetitions as nodes that count, or as often as they may come.
class Writer {
 public:
  static GrammarProgram program(const Pointer& e, bool counts) {
    Writer writer(counts);
    writer.rule(e);
    return writer.program_;
  }

 private:
  explicit Writer(bool counts) : counts_(counts) { program_.nodes.push_back({Kind::kReturn, 0, 0, 0, 0}); }

  int32_t node(const GrammarProgram::Node& node) {
    program_.nodes.push_back(node);
    return static_cast<int32_t>(program_.nodes.size()) - 1;
  }

  int32_t split(int32_t one, int32_t other) {
    const auto first = static_cast<int32_t>(program_.lists.size());
    program_.lists.insert(program_.lists.end(), {one, other});
    return node({Kind::kSplit, first, 2, 0, 0});
  }

  int32_t rule(const Pointer& e) {
    const size_t number = program_.starts.size();
    program_.starts.push_back(0);
    program_.min_bytes.push_back(e->shortest);
    const int32_t start = write(*e, 0);
    program_.starts[number] = start;
    return static_cast<int32_t>(number);
  }

  int32_t write(const Expression& e, int32_t next) {
    switch (e.type) {
      case Expression::kByte:
        return node({Kind::kByte, e.low, 0, 0, next});
      case Expression::kThen:
        return write(*e.first, write(*e.second, next));
      case Expression::kEither: {
        const int32_t first = write(*e.first, next);
        return split(first, write(*e.second, next));
      }
      case Expression::kRepeat:
        if (!counts_) return repeat(e, next);
        return node({Kind::kRepeat, rule(e.first), e.first->shortest == 0 ? 0 : e.low, e.high, next});
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
      rest = split(next, next);
      const int32_t again = write(*e.first, rest);
      program_.lists[static_cast<size_t>(program_.nodes[static_cast<size_t>(rest)].a)] = again;
    }
    for (int i = std::max(e.high, e.low); i > 0; --i) {
      rest = write(*e.first, rest);
      if (i > e.low) rest = split(rest, next);
    }
    return rest;
  }

  const bool counts_;
  GrammarProgram program_;
};

Pointer random_expression(std::mt19937& random, bool has_regions, int depth) {
  const auto below = [&] { return random_expression(random, has_regions, depth - 1); };
  const auto draw = [&](unsigned count) { return static_cast<int>(random() % count); };
  const int kind = depth == 0 ? 0 : draw(10);
  if (kind == 0) return byte("abc"[draw(3)]);
  if (kind > 6) {
    const int low = draw(4);
    const int high = draw(4) == 0 ? -1 : low + draw(4);
    return times(low, high, below());
  }
  if (kind == 6 && has_regions) {
    if (draw(2) == 0) return make(Expression::kShort, below());
    const int limit = draw(3);
    return make(Expression::kTokens, below(), nullptr, 0, limit);
  }
  if (kind == 6) return below();
  const Pointer second = kind == 1 && draw(3) == 0 ? make(Expression::kNothing) : below();
  return kind < 4 ? either(below(), second) : then(below(), second);
}

bool ends(Automaton& automaton, Automaton::State state) {
  return state != Automaton::kRejected && automaton.is_accepting(state);
}

// Compares all that may come, in texts of some more bytes. How many there were.
int compare(const Pointer& e, Automaton& automaton, Automaton::State state, int length) {
  CHECK_EQUAL(state != Automaton::kRejected, e->shortest != kNever);
  CHECK_EQUAL(ends(automaton, state), e->shortest == 0);
  if (state == Automaton::kRejected || length == 0) return 1;
  int count = 1;
  for (const char letter : {'a', 'b', 'c'}) {
    count += compare(after(e, letter), automaton, automaton.after(state, std::string(1, letter)), length - 1);
  }
  return count;
}

// The same for two programs, by tokens.
int compare(Automaton& one, Automaton::State in_one, Automaton& two, Automaton::State in_two, int length) {
  in_one = one.begin_token(in_one);
  in_two = two.begin_token(in_two);
  CHECK_EQUAL(in_one == Automaton::kRejected, in_two == Automaton::kRejected);
  CHECK_EQUAL(ends(one, in_one), ends(two, in_two));
  if (in_one == Automaton::kRejected || length == 0) return 1;
  int count = 1;
  for (const char* token : {"a", "b", "c", "ab", "bc"}) {
    count += compare(one, one.after_token(in_one, 0, token), two, two.after_token(in_two, 0, token), length - 1);
  }
  return count;
}

}  // namespace

TEST(what_repetitions_and_regions_allow_is_what_derivatives_and_programs_without_counts_allow) {
  for (const bool has_regions : {false, true}) {
    std::mt19937 random(has_regions ? 2 : 1);
    int texts = 0;
    for (int round = 0; round < 1500; ++round) {
      const Pointer e = random_expression(random, has_regions, 5);
      Automaton counted(Writer::program(e, true), has_regions || round % 2 == 0 ? 0 : 3);
      counted.set_budget(1 << 24);
      if (!has_regions) texts += compare(e, counted, counted.start(), 5);
      // Where regions can be left out of what is repeated, those that begin at different states of a text share a
      // frame, and what ends one ends the other, unless they are distinguished by what repeats them.
      if (!has_regions || e->shares) continue;
      Automaton written(Writer::program(e, false));
      written.set_budget(1 << 24);
      texts += compare(counted, counted.start(), written, written.start(), 4);
    }
    CHECK(texts > 50'000);
  }
}

TEST(texts_that_can_be_read_in_many_ways_take_few_items_a_byte) {
  const Pointer a = byte('a'), b = byte('b'), any = either(a, b), maybe = either(a, make(Expression::kNothing));
  const struct {
    Pointer e;
    unsigned letters;  // one of these is a "b"
  } cases[] = {
      {times(1, 10, then(times(1, 30, a), times(1, 30, any))), 8},
      {then(times(20, 100, any), then(a, then(times(20, 100, any), then(b, times(30, 60, any))))), 4},
      {then(times(200, 300, maybe), b), 1 << 20},
  };
  std::mt19937 random(4);
  for (const auto& [e, letters] : cases) {
    for (int round = 0; round < 20; ++round) {
      Automaton counted(Writer::program(e, true)), written(Writer::program(e, false));
      Automaton::State in_counted = counted.start(), in_written = written.start();
      for (int i = 0; i < 400 && in_counted != Automaton::kRejected; ++i) {
        CHECK_EQUAL(ends(counted, in_counted), ends(written, in_written));
        const bool is_b = random() % letters == 0;
        for (const char* letter : {is_b ? "a" : "b", is_b ? "b" : "a"}) {
          counted.set_budget(50);
          written.set_budget(1 << 24);
          const Automaton::State one = counted.after(in_counted, letter), other = written.after(in_written, letter);
          CHECK_EQUAL(one == Automaton::kRejected, other == Automaton::kRejected);
          if (*letter == (is_b ? 'b' : 'a')) in_counted = one, in_written = other;
        }
      }
    }
  }
}

TEST(states_with_the_same_future_after_different_texts_have_one_name) {
  Automaton automaton(list_program());
  const Automaton::State start = automaton.start();
  CHECK(start != Automaton::kRejected);
  const Automaton::State one = automaton.after(start, "a");
  CHECK_EQUAL(automaton.after(start, "z"), one);
  CHECK_EQUAL(automaton.after(start, "abc,d"), automaton.after(start, "q,rs,t,u"));
  CHECK_EQUAL(automaton.after(start, "abc,"), start);
}

TEST(states_far_from_the_bounds_of_repetitions_share_one_where_the_same_short_texts_may_come) {
  constexpr int kHorizon = 4;
  const Pointer word = times(1, 3, either(byte('a'), byte('b')));
  Automaton automaton(Writer::program(then(times(6, 20, then(word, byte(','))), byte(';')), true), kHorizon);
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < kHorizon; ++i) {
    for (const char c : {'a', ',', ';'}) texts.push_back(texts[i] + c);
  }
  std::set<Automaton::State> states, shared;
  std::string so_far;
  for (int word = 0; word < 20; ++word) {
    for (const char* part : {"", "a", "ab", "aba"}) {
      const Automaton::State state = automaton.after(automaton.start(), so_far + part);
      const Automaton::State near = automaton.representative(state);
      for (const std::string& text : texts) {
        CHECK_EQUAL(automaton.after(state, text) != Automaton::kRejected,
                    automaton.after(near, text) != Automaton::kRejected);
      }
      CHECK_EQUAL(automaton.is_accepting(state), automaton.is_accepting(near));
      states.insert(state);
      shared.insert(near);
    }
    so_far += "ab,";
  }
  CHECK_EQUAL(states.size(), size_t{80});
  CHECK(shared.size() < 60);
}

TEST(a_repetition_of_what_may_be_nothing_keeps_its_counts) {
  const Pointer maybe = either(either(byte('a'), byte('b')), make(Expression::kNothing));
  Automaton automaton(Writer::program(then(times(0, 9, maybe), byte(';')), true), 2);
  const Automaton::State state = automaton.after(automaton.start(), "ab");
  CHECK_EQUAL(automaton.representative(state), state);
}

TEST(a_state_knows_the_only_byte_that_may_come) {
  Automaton automaton(list_program());
  const Automaton::State start = automaton.start();
  CHECK(!automaton.only_byte(start));                           // a letter
  CHECK(!automaton.only_byte(automaton.after(start, "ab")));    // a letter, a comma or the end
  CHECK(!automaton.only_byte(automaton.after(start, "abc")));   // a comma or the end
  CHECK(!automaton.only_byte(automaton.after(start, "abc;")));  // nothing
  Automaton forced(Writer::program(then(byte('x'), byte('y')), true));
  CHECK(forced.only_byte(forced.start()) == 'x');
  CHECK(forced.only_byte(forced.after(forced.start(), "x")) == 'y');
  CHECK(!forced.only_byte(forced.after(forced.start(), "xy")));
}

TEST(the_tokens_that_may_come_are_those_whose_bytes_may) {
  const GrammarProgram program = list_program();
  std::vector<std::string> vocabulary = {"",  "a",  "a",   "b", "ab", "abc", "abcd",
                                         ",", ",a", "a,b", ";", "a;", ";a",  "\t"};
  for (int i = 0; i < 100; ++i) {
    std::string text;
    for (int k = i % 7; k >= 0; --k) text.push_back("ab,;z"[(i * 31 + k * k * 7) % 5]);
    vocabulary.push_back(text);
  }
  const TokenTrie tokens(vocabulary);
  CHECK_EQUAL(tokens.max_token_bytes(), 7u);
  for (const char* text : {"", "a", "abc", "q,", "x;"}) {
    Automaton automaton(program), limited(program);
    automaton.set_budget(100'000);
    limited.set_budget(100'000);
    std::vector<int32_t> mask((vocabulary.size() + 31) / 32, 0);
    tokens.find_allowed(automaton, automaton.after(automaton.start(), text), mask);
    for (size_t token = 0; token < vocabulary.size(); ++token) {
      const bool may_come = !vocabulary[token].empty() && limited.after(limited.after(limited.start(), text),
                                                                        vocabulary[token]) != Automaton::kRejected;
      CHECK_EQUAL((mask[token / 32] >> (token % 32) & 1) != 0, may_come);
    }
  }
}

TEST(what_takes_more_than_its_budget_is_an_error_and_can_be_had_with_a_larger_one) {
  Automaton automaton(list_program());
  automaton.set_budget(50);
  const Automaton::State state = automaton.after(automaton.start(), "a,b");
  automaton.set_budget(3);
  CHECK(error_of([&] { automaton.after(state, "c"); }) == ErrorCode::kInvalidArgument);
  automaton.set_budget(50);
  CHECK(automaton.after(state, "c") != Automaton::kRejected);
}

TEST(what_is_large_is_forgotten_but_for_some_states_which_lead_where_they_led) {
  Pointer letter = byte('a');
  for (const char other : {'b', 'c', 'd', 'e', 'f', 'g', 'h'}) letter = either(letter, byte(other));
  const Pointer lengths = then(times(0, 1 << 20, letter), byte(';'));  // a state a length
  Automaton automaton(Writer::program(times(3, 9, lengths), true));
  automaton.set_budget(1 << 24);
  Automaton::State one = automaton.after(automaton.start(), "ab;"), other = automaton.start();
  for (int i = 0; !automaton.is_cache_large() && i < 1 << 18; ++i) other = automaton.after(other, "abcdefgh");
  CHECK(automaton.is_cache_large());
  automaton.drop_all_but({&one, &other});
  CHECK(!automaton.is_cache_large());
  CHECK(automaton.bytes() < 10'000);
  CHECK_EQUAL(automaton.after(automaton.start(), "ab;"), one);
  CHECK(!automaton.is_accepting(automaton.after(one, "c;")));
  CHECK(automaton.is_accepting(automaton.after(one, "c;;")));
  CHECK_EQUAL(automaton.after(other, "A"), Automaton::kRejected);
  CHECK(!automaton.is_accepting(automaton.after(other, "a;;")));
  CHECK(automaton.is_accepting(automaton.after(other, "a;;;")));
}

TEST(a_grammar_whose_sets_do_not_end_is_refused) {
  GrammarProgram program;  // root ::= root "a" | "a"
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0}, {Kind::kByte, 'a', 0, 0, 0}, {Kind::kCall, 0, 0, 0, 1}, {Kind::kSplit, 0, 2, 0, 0}};
  program.lists = {2, 1};
  program.starts = {3};
  CHECK(error_of([&] { Automaton{program}; }) == ErrorCode::kInvalidArgument);
}

TEST(a_program_that_points_outside_of_itself_is_refused) {
  std::mt19937 random(9);
  for (int round = 0; round < 2000; ++round) {
    GrammarProgram program = list_program();
    GrammarProgram::Node& node = program.nodes[random() % program.nodes.size()];
    int32_t* const members[] = {&node.kind, &node.a, &node.b, &node.c, &node.next};
    *members[random() % 5] = static_cast<int32_t>(random()) >> random() % 32;
    try {
      Automaton automaton(std::move(program));
      for (const char* text : {"abc,d;", "a,bc;"}) automaton.after(automaton.start(), text);
    } catch (const Error&) {
      continue;
    }
  }
  CHECK(error_of([] { Automaton{GrammarProgram()}; }) == ErrorCode::kInternal);
}

}  // namespace turbomind::testing
