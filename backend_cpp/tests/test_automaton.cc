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

TEST(what_is_tried_says_what_following_it_says) {
  std::mt19937 random(5);
  for (int run = 0; run < 200; ++run) {
    Automaton followed(list_program());
    Automaton tried(list_program());
    Automaton::Place place = tried.start();
    std::string so_far;
    for (int step = 0; step < 6; ++step) {
      std::string allowed;
      tried.begin_trial();
      for (const char* text : {"a", "bc", ",", ";", "a,b", "\xE4\xB8\xAD", "zzzz", ";a"}) {
        const bool may_come = tried.after(place, text) != Automaton::kNowhere;
        CHECK_EQUAL(may_come, followed.after(followed.start(), so_far + text) != Automaton::kNowhere);
        if (may_come && (allowed.empty() || random() % 2 == 0)) allowed = text;
      }
      tried.end_trial();
      if (allowed.empty()) break;
      so_far += allowed;
      place = tried.after(place, allowed);
      CHECK_EQUAL(tried.may_end(place), so_far.back() == ';');
    }
  }
}

TEST(what_is_tried_leaves_nothing_behind_where_memory_is_short) {
  // root ::= [a-z]{0,...}: a place a length.
  Automaton::Program program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0}, {Kind::kRepeat, 1, 0, 1 << 20, 0}, {Kind::kClass, 0, 1, 0, 0}};
  program.lists = {'a', 'z'};
  program.starts = {1, 2};
  Automaton automaton(program);
  const auto tried_bytes = [&](Automaton::Place place) {
    const size_t before = automaton.bytes();
    automaton.begin_trial();
    CHECK(automaton.after(place, "qwertzuiopasdfghjklyxcvbnm") != Automaton::kNowhere);
    CHECK_EQUAL(automaton.after(place, "A"), Automaton::kNowhere);
    automaton.end_trial();
    return automaton.bytes() - before;
  };
  CHECK(tried_bytes(automaton.start()) > 0);
  Automaton::Place place = automaton.start();
  while (automaton.bytes() < size_t{5} << 20) place = automaton.after(place, "abcdefgh");
  CHECK_EQUAL(tried_bytes(place), size_t{0});
  CHECK_EQUAL(tried_bytes(place), size_t{0});
  const Automaton::Place next = automaton.after(place, "ab");
  CHECK(next != place && next != Automaton::kNowhere);
  CHECK_EQUAL(automaton.after(automaton.after(place, "x"), "y"), next);
}

TEST(places_far_from_the_bounds_of_repetitions_share_one_where_the_same_short_texts_may_come) {
  // root ::= (letter{1,3} ","){6,20} ";"
  Automaton::Program program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},   // 0
      {Kind::kByte, ';', 0, 0, 0},   // 1
      {Kind::kRepeat, 1, 6, 20, 1},  // 2: root
      {Kind::kByte, ',', 0, 0, 0},   // 3
      {Kind::kRepeat, 2, 1, 3, 3},   // 4: word
      {Kind::kClass, 0, 1, 0, 0},    // 5: letter
  };
  program.lists = {'a', 'b'};
  program.starts = {2, 4, 5};
  constexpr int kHorizon = 4;
  Automaton automaton(program, kHorizon);
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < kHorizon; ++i) {
    for (const char c : {'a', ',', ';'}) texts.push_back(texts[i] + c);
  }
  std::set<Automaton::Place> places, shared;
  std::string so_far;
  for (int word = 0; word < 20; ++word) {
    for (const char* part : {"", "a", "ab", "aba"}) {
      const Automaton::Place place = automaton.after(automaton.start(), so_far + part);
      const Automaton::Place near = automaton.nearby(place);
      for (const std::string& text : texts) {
        CHECK_EQUAL(automaton.after(place, text) != Automaton::kNowhere,
                    automaton.after(near, text) != Automaton::kNowhere);
      }
      CHECK_EQUAL(automaton.may_end(place), automaton.may_end(near));
      places.insert(place);
      shared.insert(near);
    }
    so_far += "ab,";
  }
  CHECK_EQUAL(places.size(), size_t{80});
  CHECK(shared.size() < 60);
}

TEST(a_repetition_of_what_may_be_nothing_keeps_its_counts) {
  // root ::= (letter?){0,9} ";"
  Automaton::Program program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0},
                   {Kind::kByte, ';', 0, 0, 0},
                   {Kind::kRepeat, 1, 0, 9, 1},
                   {Kind::kClass, 0, 1, 0, 0},
                   {Kind::kSplit, 2, 2, 0, 0}};
  program.lists = {'a', 'b', 3, 0};
  program.starts = {2, 4};
  Automaton automaton(program, 2);
  const Automaton::Place place = automaton.after(automaton.start(), "ab");
  CHECK_EQUAL(automaton.nearby(place), place);
}

TEST(a_place_knows_about_how_many_characters_may_come) {
  Automaton automaton(list_program());
  CHECK_EQUAL(automaton.characters(automaton.start()), int64_t{0x4E2D - 'a' + 1});
  CHECK_EQUAL(automaton.characters(automaton.after(automaton.start(), "abc")), int64_t{2});
  CHECK(automaton.is_inside_character(automaton.after(automaton.start(), "\xE4")));
  CHECK(!automaton.is_inside_character(automaton.start()));
}

TEST(a_place_knows_the_only_byte_that_may_come) {
  Automaton automaton(list_program());
  const Automaton::Place start = automaton.start();
  CHECK(!automaton.only_byte(start));                           // a letter
  CHECK(!automaton.only_byte(automaton.after(start, "ab")));    // a letter, a comma or the end
  CHECK(!automaton.only_byte(automaton.after(start, "abc")));   // a comma or the end
  CHECK(!automaton.only_byte(automaton.after(start, "abc;")));  // nothing
  CHECK(!automaton.only_byte(automaton.after(start, "\xE4")));  // one of several
  Automaton::Program program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0},
                   {Kind::kClass, 0, 1, 0, 0},    // y
                   {Kind::kByte, 'x', 0, 0, 1}};  // root
  program.lists = {'y', 'y'};
  program.starts = {2};
  Automaton forced(program);
  CHECK(forced.only_byte(forced.start()) == 'x');
  CHECK(forced.only_byte(forced.after(forced.start(), "x")) == 'y');
  CHECK(!forced.only_byte(forced.after(forced.start(), "xy")));
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
