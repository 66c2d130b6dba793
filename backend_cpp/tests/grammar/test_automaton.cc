// Names of states in a grammar.
#include <algorithm>
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

// root ::= root "a" | "a"
GrammarProgram left_recursive_program() {
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0}, {Kind::kByte, 'a', 0, 0, 0}, {Kind::kCall, 0, 0, 0, 1}, {Kind::kSplit, 0, 2, 0, 0}};
  program.lists = {2, 1};
  program.starts = {3};
  return program;
}

}  // namespace

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
  // root ::= (letter{1,3} ","){6,20} ";"
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},   // 0
      {Kind::kByte, ';', 0, 0, 0},   // 1
      {Kind::kRepeat, 1, 6, 20, 1},  // 2: root
      {Kind::kByte, ',', 0, 0, 0},   // 3
      {Kind::kRepeat, 2, 1, 3, 3},   // 4: word
      {Kind::kBytes, 0, 1, 0, 0},    // 5: letter
  };
  program.lists = {'a', 'b'};
  program.starts = {2, 4, 5};
  program.min_bytes = {13, 1, 1};
  constexpr int kHorizon = 4;
  Automaton automaton(program, kHorizon);
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
  // root ::= (letter?){0,9} ";"
  GrammarProgram program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0},
                   {Kind::kByte, ';', 0, 0, 0},
                   {Kind::kRepeat, 1, 0, 9, 1},
                   {Kind::kBytes, 0, 1, 0, 0},
                   {Kind::kSplit, 2, 2, 0, 0}};
  program.lists = {'a', 'b', 3, 0};
  program.starts = {2, 4};
  program.min_bytes = {1, 0};
  Automaton automaton(program, 2);
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
  GrammarProgram program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0}, {Kind::kByte, 'y', 0, 0, 0}, {Kind::kByte, 'x', 0, 0, 1}};  // root
  program.starts = {2};
  Automaton forced(program);
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
  // root ::= (letter{0,...} ";"){3,9}: a state a length.
  GrammarProgram program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0},
                   {Kind::kRepeat, 1, 3, 9, 0},
                   {Kind::kByte, ';', 0, 0, 0},
                   {Kind::kRepeat, 2, 0, 1 << 20, 2},
                   {Kind::kBytes, 0, 1, 0, 0}};
  program.lists = {'a', 'z'};
  program.starts = {1, 3, 4};
  Automaton automaton(program);
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
  CHECK(error_of([] { Automaton{left_recursive_program()}; }) == ErrorCode::kInvalidArgument);
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
