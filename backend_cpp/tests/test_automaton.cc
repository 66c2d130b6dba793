// Names of places in a grammar.
#include <random>
#include <set>

#include "engine/grammar/automaton.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

using Kind = Automaton::Kind;

// root ::= list ";"    list ::= item ("," list)?    item ::= [a-z]{1,3}    a class of its own for the letter
Automaton::Program list_program() {
  Automaton::Program program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},  // 0
      {Kind::kByte, ';', 0, 0, 0},  // 1
      {Kind::kCall, 1, 0, 0, 1},    // 2: root
      {Kind::kCall, 1, 0, 0, 0},    // 3: list, in last place
      {Kind::kByte, ',', 0, 0, 3},  // 4
      {Kind::kSplit, 2, 2, 0, 0},   // 5: "," list, or nothing
      {Kind::kCall, 2, 0, 0, 5},    // 6: list
      {Kind::kRepeat, 3, 1, 3, 0},  // 7: item
      {Kind::kClass, 0, 1, 0, 0},   // 8: letter
  };
  program.lists = {'a', 0x4E2D, 4, 0};
  program.starts = {2, 6, 7, 8};
  return program;
}

// root ::= root "a" | "a"
Automaton::Program left_recursive_program() {
  Automaton::Program program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0}, {Kind::kByte, 'a', 0, 0, 0}, {Kind::kCall, 0, 0, 0, 1}, {Kind::kSplit, 0, 2, 0, 0}};
  program.lists = {2, 1};
  program.starts = {3};
  return program;
}

}  // namespace

TEST(places_with_the_same_future_after_different_texts_have_one_name) {
  Automaton automaton(list_program());
  const Automaton::Place start = automaton.start();
  CHECK(start != Automaton::kNowhere);
  const Automaton::Place one = automaton.after(start, "a");
  CHECK_EQUAL(automaton.after(start, "z"), one);
  CHECK_EQUAL(automaton.after(start, "abc,d"), automaton.after(start, "q,rs,t,u"));
  CHECK_EQUAL(automaton.after(start, "abc,"), start);
  CHECK_EQUAL(automaton.after(start, "\xE4\xB8\xAD"), automaton.after(start, "b"));  // one character of three bytes
}

TEST(places_with_different_futures_have_different_names) {
  Automaton automaton(list_program());
  const Automaton::Place start = automaton.start();
  const std::set<Automaton::Place> places = {start,
                                             automaton.after(start, "a"),
                                             automaton.after(start, "ab"),
                                             automaton.after(start, "abc"),
                                             automaton.after(start, "\xE4"),
                                             automaton.after(start, "a;")};
  CHECK_EQUAL(places.size(), 6u);
  CHECK(!places.contains(Automaton::kNowhere));
}

TEST(what_a_grammar_does_not_allow_leads_nowhere) {
  Automaton automaton(list_program());
  for (const char* text : {"A", ";", "abcd", "a,,", "a;a"}) {
    CHECK_EQUAL(automaton.after(automaton.start(), text), Automaton::kNowhere);
  }
}

TEST(the_places_of_a_long_random_text_are_few) {
  Automaton automaton(list_program());
  std::mt19937 random(3);
  std::set<Automaton::Place> places;
  Automaton::Place place = automaton.start();
  for (int item = 0; item < 5000; ++item) {
    for (unsigned letters = 1 + random() % 3; letters > 0; --letters) {
      place = automaton.after(place, std::string(1, static_cast<char>('a' + random() % 26)));
      places.insert(place);
    }
    place = automaton.after(place, ",");
    places.insert(place);
  }
  CHECK_EQUAL(places.size(), 4u);
  CHECK(automaton.bytes() < 64 << 10);
}

TEST(a_grammar_whose_sets_do_not_end_is_given_up) {
  Automaton automaton(left_recursive_program());
  CHECK_EQUAL(automaton.start(), Automaton::kNowhere);
  CHECK_EQUAL(automaton.after(automaton.start(), "a"), Automaton::kNowhere);
}

TEST(a_program_that_points_outside_of_itself_has_no_places) {
  std::mt19937 random(9);
  for (int round = 0; round < 2000; ++round) {
    Automaton::Program program = list_program();
    Automaton::Node& node = program.nodes[random() % program.nodes.size()];
    int32_t* const members[] = {&node.kind, &node.a, &node.b, &node.c, &node.next};
    *members[random() % 5] = static_cast<int32_t>(random()) >> random() % 32;
    Automaton automaton(std::move(program));
    for (const char* text : {"abc,d;", "a,\xE4\xB8\xAD;"}) automaton.after(automaton.start(), text);
  }
  CHECK_EQUAL(Automaton({}).start(), Automaton::kNowhere);
}

}  // namespace turbomind::testing
