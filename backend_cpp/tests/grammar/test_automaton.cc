// Names of states in a grammar.
#include <algorithm>
#include <random>
#include <set>
#include <span>

#include "engine/grammar/automaton.h"
#include "engine/grammar/token_trie.h"
#include "grammar/prepare_program.h"
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
      {Kind::kClass, 0, 1, 0, 0},   // 8: letter
  };
  program.lists = {'a', 0x4E2D, 4, 0};
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

// root ::= letter{1,}, in a region with a limit, and then ";"
GrammarProgram limited_program(int32_t most, GrammarProgram::Limit limit) {
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},         // 0
      {Kind::kByte, ';', 0, 0, 0},         // 1
      {Kind::kRegion, 1, most, limit, 1},  // 2: root
      {Kind::kRepeat, 2, 1, -1, 0},        // 3: letters
      {Kind::kClass, 0, 2, 0, 0},          // 4: letter
  };
  program.lists = {'a', 'c', 0x4E2D, 0x4E2D};
  program.starts = {2, 3, 4};
  return program;
}

// Where tokens lead, each read by its bytes alone.
Automaton::State after_tokens(Automaton& automaton, const std::vector<std::string>& tokens) {
  Automaton::State state = automaton.start();
  for (const std::string& token : tokens) state = automaton.after_token(automaton.begin_token(state), 0, token);
  return state;
}

}  // namespace

TEST(a_region_has_room_for_the_tokens_that_begin_in_it) {
  for (const size_t horizon : {0, 4}) {
    Automaton automaton(limited_program(2, GrammarProgram::kMaxTokens), horizon);
    automaton.set_budget(10'000);
    const auto allows = [&](const std::vector<std::string>& tokens) {
      return after_tokens(automaton, tokens) != Automaton::kRejected;
    };
    CHECK(allows({"a", "b", ";"}));
    CHECK(allows({"aaaaaaaaa", "b;"}));  // what it ends with begins in it
    CHECK(allows({"a", ";"}));
    CHECK(!allows({"a", "b", "c"}));
    CHECK(!allows({"a", "b", "c;"}));
    CHECK(allows({"\xE4\xB8", "\xAD", ";"}));
    CHECK(allows({"\xE4", "\xB8", "\xAD;"}));  // it cannot end within a character
    // Where two tokens have begun, none of its letters may come, whatever is shared with other states.
    const Automaton::State full = automaton.begin_token(automaton.representative(after_tokens(automaton, {"a", "b"})));
    CHECK_EQUAL(automaton.after(full, "c"), Automaton::kRejected);
    CHECK(automaton.after(full, ";") != Automaton::kRejected);
  }
}

TEST(a_region_without_room_goes_on_until_it_may_end) {
  GrammarProgram program = limited_program(1, GrammarProgram::kMaxTokens);
  program.nodes[3].b = 3;  // letters, at least
  Automaton automaton(program);
  const auto allows = [&](const std::vector<std::string>& tokens) {
    return after_tokens(automaton, tokens) != Automaton::kRejected;
  };
  CHECK(allows({"a", "b", "c", ";"}));
  CHECK(!allows({"a", "b", "c", "a"}));
  CHECK(allows({"a", "bca", ";"}));
  CHECK(!allows({"abc", "a"}));
  CHECK(!allows({"a", "b", ";"}));
}

TEST(a_region_may_end_at_some_states_only_where_it_has_no_room) {
  // root ::= (letters q, as short as it can be, or letters where there is no room) ";", of two tokens
  GrammarProgram program = limited_program(2, GrammarProgram::kMaxTokens);
  program.nodes[3].next = 5;
  program.nodes.push_back({Kind::kSplit, 4, 2, 0, 0});                           // 5: an end, or q
  program.nodes.push_back({Kind::kWhenFull, 0, 0, 0, 0});                        // 6
  program.nodes.push_back({Kind::kByte, 'q', 0, 0, 0});                          // 7
  program.nodes.push_back({Kind::kRegion, 1, 0, GrammarProgram::kShortest, 0});  // 8
  program.nodes[2].a = 3;
  program.lists.insert(program.lists.end(), {6, 7});
  program.starts.push_back(8);
  Automaton automaton(program);
  const auto allows = [&](const std::vector<std::string>& tokens) {
    automaton.set_budget(10'000);
    return after_tokens(automaton, tokens) != Automaton::kRejected;
  };
  CHECK(allows({"a", "bq", ";"}));
  CHECK(allows({"aq", ";"}));
  CHECK(allows({"aq;"}));
  CHECK(allows({"a", "b", ";"}));
  CHECK(!allows({"a", "b", "q"}));
  CHECK(!allows({"a", "b", "c"}));
  CHECK(!allows({"a", ";"}));
  CHECK(!allows({"a", "b;"}));
  CHECK(allows({"a", "\xE4", "\xB8\xAD", ";"}));  // it cannot end within a character
}

TEST(a_region_that_ends_as_soon_as_it_may_does_not_continue) {
  Automaton automaton(limited_program(0, GrammarProgram::kShortest));
  CHECK_EQUAL(automaton.after(automaton.start(), "ab"), Automaton::kRejected);
  CHECK(automaton.after(automaton.start(), "a;") != Automaton::kRejected);
  CHECK_EQUAL(automaton.after(automaton.start(), "\xE4\xB8;"), Automaton::kRejected);
  CHECK(automaton.after(automaton.start(), "\xE4\xB8\xAD;") != Automaton::kRejected);
}

TEST(such_a_region_can_come_again_at_once) {
  // root ::= word* "x"    word ::= a* "b" as short as it can be
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},                          // 0
      {Kind::kByte, 'x', 0, 0, 0},                          // 1
      {Kind::kRepeat, 1, 0, -1, 1},                         // 2: root
      {Kind::kRegion, 2, 0, GrammarProgram::kShortest, 0},  // 3
      {Kind::kByte, 'b', 0, 0, 0},                          // 4
      {Kind::kSplit, 0, 2, 0, 0},                           // 5: word
      {Kind::kByte, 'a', 0, 0, 5},                          // 6
  };
  program.lists = {6, 4};
  program.starts = {2, 3, 5};
  Automaton automaton(program);
  for (const char* text : {"x", "bx", "bbbx", "aabbx", "abaabx"}) {
    CHECK(automaton.after(automaton.start(), text) != Automaton::kRejected);
  }
  CHECK_EQUAL(automaton.after(automaton.start(), "aax"), Automaton::kRejected);
}

TEST(such_a_region_that_may_be_nothing_is_nothing) {
  // root ::= [abc]* as short as it can be, repeated, and then ";"
  GrammarProgram program = limited_program(0, GrammarProgram::kShortest);
  program.nodes[3].b = 0;
  program.nodes.push_back({Kind::kRepeat, 3, 0, -1, 1});
  program.nodes[2].next = 0;
  program.starts = {5, 3, 4, 2};
  Automaton automaton(program);
  CHECK(automaton.after(automaton.start(), ";") != Automaton::kRejected);
  CHECK_EQUAL(automaton.after(automaton.start(), "a"), Automaton::kRejected);
}

TEST(bytes_of_ranges_need_not_be_characters) {
  // root ::= ([\x00-\x1F] | [\x80-\xFF])* "a"
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0}, {Kind::kByte, 'a', 0, 0, 0}, {Kind::kSplit, 0, 2, 0, 0}, {Kind::kBytes, 2, 2, 0, 2}};
  program.lists = {1, 3, 0, 0x1F, 0x80, 0xFF};
  program.starts = {2};
  Automaton automaton(program);
  for (int byte = 0; byte < 256; ++byte) {
    const bool may_come = automaton.after(automaton.start(), static_cast<uint8_t>(byte)) != Automaton::kRejected;
    CHECK_EQUAL(may_come, byte < 0x20 || byte >= 0x80 || byte == 'a');
  }
}

TEST(tokens_are_read_by_their_numbers_where_one_begins) {
  // root ::= (token 7 | "ab") (any token but 7 and 8)*
  GrammarProgram program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0}, {Kind::kSplit, 0, 2, 0, 0},  // 1
                   {Kind::kToken, 2, 2, 1, 1},                               // 2
                   {Kind::kToken, 2, 1, 0, 1},                               // 3
                   {Kind::kByte, 'b', 0, 0, 1},                              // 4
                   {Kind::kByte, 'a', 0, 0, 4},                              // 5
                   {Kind::kSplit, 4, 2, 0, 0}};                              // 6: root
  program.lists = {2, 0, 7, 8, 3, 5};
  program.starts = {6};
  Automaton automaton(program);
  const Automaton::State start = automaton.begin_token(automaton.start());
  const Automaton::State rest = automaton.after_token(start, 7, "xyz");
  CHECK(rest != Automaton::kRejected);
  CHECK(automaton.is_accepting(rest));
  CHECK_EQUAL(automaton.after_token(start, 1, "ab"), rest);
  CHECK_EQUAL(automaton.after_token(automaton.after(start, "a"), 2, "b"), rest);
  CHECK_EQUAL(automaton.after_token(start, 8, "xyz"), Automaton::kRejected);
  for (const int32_t token : {6, 7, 8, 9}) {
    CHECK_EQUAL(automaton.after_token(rest, token, "?"), token == 7 || token == 8 ? Automaton::kRejected : rest);
  }
  int lists = 0;
  automaton.for_each_token_list(start, [&](bool is_all_but, std::span<const int32_t> tokens) {
    ++lists;
    CHECK(!is_all_but);
    CHECK_EQUAL(tokens.size(), 1u);
    CHECK_EQUAL(tokens[0], 7);
  });
  CHECK_EQUAL(lists, 1);
}

TEST(states_with_the_same_future_after_different_texts_have_one_name) {
  Automaton automaton(list_program());
  const Automaton::State start = automaton.start();
  CHECK(start != Automaton::kRejected);
  const Automaton::State one = automaton.after(start, "a");
  CHECK_EQUAL(automaton.after(start, "z"), one);
  CHECK_EQUAL(automaton.after(start, "abc,d"), automaton.after(start, "q,rs,t,u"));
  CHECK_EQUAL(automaton.after(start, "abc,"), start);
  CHECK_EQUAL(automaton.after(start, "\xE4\xB8\xAD"), automaton.after(start, "b"));  // one character of three bytes
}

TEST(states_with_different_futures_have_different_names) {
  Automaton automaton(list_program());
  const Automaton::State start = automaton.start();
  const std::set<Automaton::State> states = {start,
                                             automaton.after(start, "a"),
                                             automaton.after(start, "ab"),
                                             automaton.after(start, "abc"),
                                             automaton.after(start, "\xE4"),
                                             automaton.after(start, "a;")};
  CHECK_EQUAL(states.size(), 6u);
  CHECK(!states.contains(Automaton::kRejected));
}

TEST(what_a_grammar_does_not_allow_leads_nowhere) {
  Automaton automaton(list_program());
  for (const char* text : {"A", ";", "abcd", "a,,", "a;a"}) {
    CHECK_EQUAL(automaton.after(automaton.start(), text), Automaton::kRejected);
  }
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
      {Kind::kClass, 0, 1, 0, 0},    // 5: letter
  };
  program.lists = {'a', 'b'};
  program.starts = {2, 4, 5};
  constexpr int kHorizon = 4;
  CHECK(prepare(program));
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
                   {Kind::kClass, 0, 1, 0, 0},
                   {Kind::kSplit, 2, 2, 0, 0}};
  program.lists = {'a', 'b', 3, 0};
  program.starts = {2, 4};
  CHECK(prepare(program));
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
  CHECK(!automaton.only_byte(automaton.after(start, "\xE4")));  // one of several
  GrammarProgram program;
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

TEST(the_states_of_a_long_random_text_are_few) {
  Automaton automaton(list_program());
  std::mt19937 random(3);
  std::set<Automaton::State> states;
  Automaton::State state = automaton.start();
  for (int item = 0; item < 5000; ++item) {
    for (unsigned letters = 1 + random() % 3; letters > 0; --letters) {
      state = automaton.after(state, std::string(1, static_cast<char>('a' + random() % 26)));
      states.insert(state);
    }
    state = automaton.after(state, ",");
    states.insert(state);
  }
  CHECK_EQUAL(states.size(), 4u);
  CHECK(automaton.bytes() < 64 << 10);
}

TEST(characters_are_whole_utf_8_and_of_their_class) {
  // root ::= class*
  GrammarProgram program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0}, {Kind::kSplit, 0, 2, 0, 0}, {Kind::kClass, 2, 2, 0, 1}};
  program.starts = {1};
  const auto encode = [](uint32_t c) {
    std::string text;
    const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
    if (c < 0x80) return std::string(1, static_cast<char>(c));
    if (c >= 0x10000) put(0xF0 | c >> 18);
    if (c >= 0x800) put(c >= 0x10000 ? 0x80 | (c >> 12 & 0x3F) : 0xE0 | c >> 12);
    put(c >= 0x800 ? 0x80 | (c >> 6 & 0x3F) : 0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
    return text;
  };
  const std::vector<int32_t> bounds = {0x20,   0x7F,   0x80,   0xE9,    0x7FF,   0x800,   0x4E2D,
                                       0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F642, 0x10FFFF};
  std::mt19937 random(2);
  for (int run = 0; run < 40; ++run) {
    int32_t pairs[4];
    for (int32_t& bound : pairs) bound = bounds[random() % bounds.size()];
    std::sort(pairs, pairs + 2);
    std::sort(pairs + 2, pairs + 4);
    const bool is_negated = run % 2 == 1;
    program.nodes[2].c = is_negated ? 1 : 0;
    program.lists = {2, 0, pairs[0], pairs[1], pairs[2], pairs[3]};
    Automaton automaton(program);
    for (const int32_t bound : bounds) {
      for (int32_t c = std::max(0, bound - 2); c <= bound + 2; ++c) {
        const bool is_listed = (pairs[0] <= c && c <= pairs[1]) || (pairs[2] <= c && c <= pairs[3]);
        const bool is_character = c < 0x110000 && (c < 0xD800 || c > 0xDFFF);
        const Automaton::State state = automaton.after(automaton.start(), encode(static_cast<uint32_t>(c)));
        CHECK_EQUAL(state == automaton.start(), is_character && is_listed != is_negated);
      }
    }
    for (const char* broken :
         {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\x80", "\xF5", "\xFF", "\xC3q"}) {
      CHECK_EQUAL(automaton.after(automaton.start(), broken), Automaton::kRejected);
    }
  }
}

TEST(a_byte_that_begins_no_character_of_a_class_does_not_come) {
  // root ::= [0-9é]
  GrammarProgram program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0}, {Kind::kClass, 0, 2, 0, 0}};
  program.lists = {'0', '9', 0xE9, 0xE9};
  program.starts = {1};
  Automaton automaton(program);
  for (int byte = 0; byte < 256; ++byte) {
    const bool may_come = automaton.after(automaton.start(), static_cast<uint8_t>(byte)) != Automaton::kRejected;
    CHECK_EQUAL(may_come, (byte >= '0' && byte <= '9') || byte == 0xC3);
  }
}

TEST(the_rest_of_a_character_has_one_state_where_all_such_may_come) {
  // root ::= [^"]
  GrammarProgram program;
  program.nodes = {{Kind::kReturn, 0, 0, 0, 0}, {Kind::kClass, 0, 1, 1, 0}};
  program.lists = {'"', '"'};
  program.starts = {1};
  Automaton automaton(program);
  const Automaton::State one = automaton.after(automaton.start(), "\xC3");
  CHECK(one != Automaton::kRejected);
  for (const char* begun : {"\xD7", "\xE4\xB8", "\xE0\xA4", "\xED\x9F", "\xF0\x9F\x99", "\xF4\x8F\xBF"}) {
    CHECK_EQUAL(automaton.after(automaton.start(), begun), one);
  }
}

TEST(the_tokens_that_may_come_are_those_whose_bytes_may) {
  const GrammarProgram program = list_program();
  std::vector<std::string> vocabulary = {"",    "a", "a",  "b",  "ab",   "abc",           "abcd",     ",", ",a",
                                         "a,b", ";", "a;", ";a", "\xE4", "\xE4\xB8\xAD,", "\xB8\xAD", "\t"};
  for (int i = 0; i < 100; ++i) {
    std::string text;
    for (int k = i % 7; k >= 0; --k) text.push_back("ab,;z"[(i * 31 + k * k * 7) % 5]);
    vocabulary.push_back(text);
  }
  const TokenTrie tokens(vocabulary);
  CHECK_EQUAL(tokens.longest(), 7u);
  for (const char* text : {"", "a", "abc", "q,", "abc,\xE4", "x;"}) {
    Automaton automaton(program), apart(program);
    automaton.set_budget(100'000);
    apart.set_budget(100'000);
    std::vector<int32_t> mask((vocabulary.size() + 31) / 32, 0);
    tokens.find_allowed(automaton, automaton.after(automaton.start(), text), mask);
    for (size_t token = 0; token < vocabulary.size(); ++token) {
      const bool may_come = !vocabulary[token].empty() &&
                            apart.after(apart.after(apart.start(), text), vocabulary[token]) != Automaton::kRejected;
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
                   {Kind::kClass, 0, 1, 0, 0}};
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
      for (const char* text : {"abc,d;", "a,\xE4\xB8\xAD;"}) automaton.after(automaton.start(), text);
    } catch (const Error&) {
      continue;
    }
  }
  CHECK(error_of([] { Automaton{GrammarProgram()}; }) == ErrorCode::kInternal);
}

}  // namespace turbomind::testing
