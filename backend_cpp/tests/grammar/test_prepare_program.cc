// Prepared programs accept the texts of the originals.
#include "grammar/prepare_program.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/automaton.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

using Kind = GrammarProgram::Kind;
using Texts = std::set<std::string>;

constexpr size_t kLongest = 5;

// A context-free grammar: each rule has choices, which are symbols in a row. Rules are upper case, from A on; a symbol
// in lower case is a byte; a rule with a + or a * comes once or any number of times, a ? follows what may come.
struct Rules {
  std::vector<std::vector<std::string>> choices;
};

struct Symbol {
  char name;
  int least = 1, most = 1;  // -1: none

  bool is_rule() const { return name < 'a'; }
  size_t rule() const { return static_cast<size_t>(name - 'A'); }
};

std::vector<Symbol> symbols_of(const std::string& choice) {
  std::vector<Symbol> symbols;
  for (const char c : choice) {
    if (c == '?') symbols.back().least = 0;
    if (c == '*') symbols.back() = {symbols.back().name, 0, -1};
    if (c == '+') symbols.back().most = -1;
    if (c == '2') symbols.back() = {symbols.back().name, 1, 2};
    if (c == '?' || c == '*' || c == '+' || c == '2') continue;
    symbols.push_back({c});
  }
  return symbols;
}

Texts joined(const Texts& first, const Texts& second) {
  Texts found;
  for (const std::string& one : first) {
    for (const std::string& two : second) {
      if (one.size() + two.size() <= kLongest) found.insert(one + two);
    }
  }
  return found;
}

// All texts of the first rule that are not too long: those of all rules, until there are no more.
Texts texts_of(const Rules& rules) {
  std::vector<Texts> texts(rules.choices.size());
  for (size_t before = 1, count = 0; before != count;) {
    before = count;
    for (size_t rule = 0; rule < texts.size(); ++rule) {
      for (const std::string& choice : rules.choices[rule]) {
        Texts so_far = {""};
        for (const Symbol& symbol : symbols_of(choice)) {
          const Texts one = symbol.is_rule() ? texts[symbol.rule()] : Texts{std::string(1, symbol.name)};
          const int most = symbol.most < 0 ? static_cast<int>(kLongest) + 1 : symbol.most;
          Texts repeated, power = so_far;
          for (int times = 0; times <= most && !power.empty(); ++times) {
            if (times >= symbol.least) repeated.insert(power.begin(), power.end());
            power = joined(power, one);
          }
          so_far = std::move(repeated);
        }
        texts[rule].insert(so_far.begin(), so_far.end());
      }
    }
    count = 0;
    for (const Texts& each : texts) count += each.size();
  }
  return texts[0];
}

GrammarProgram program_of(const Rules& rules) {
  GrammarProgram program;
  const auto add = [&](const GrammarProgram::Node& node) {
    program.nodes.push_back(node);
    return static_cast<int32_t>(program.nodes.size()) - 1;
  };
  const auto split = [&](const std::vector<int32_t>& nodes) {
    program.lists.insert(program.lists.end(), nodes.begin(), nodes.end());
    const auto count = static_cast<int32_t>(nodes.size());
    return add({Kind::kSplit, static_cast<int32_t>(program.lists.size()) - count, count, 0, 0});
  };
  const int32_t end = add({});
  for (const std::vector<std::string>& choices : rules.choices) {
    std::vector<int32_t> starts;
    for (const std::string& choice : choices) {
      int32_t next = end;
      std::vector<Symbol> symbols = symbols_of(choice);
      std::ranges::reverse(symbols);
      for (const auto& [name, least, most] : symbols) {
        const int32_t rule = name - 'A';
        if (name >= 'a') {
          const int32_t byte = add({Kind::kByte, name, 0, 0, next});
          next = least == 0 ? split({byte, next}) : byte;
        } else if (least == 1 && most == 1) {
          next = add({Kind::kCall, rule, 0, 0, next});
        } else {
          next = add({Kind::kRepeat, rule, least, most, next});
        }
      }
      starts.push_back(next);
    }
    program.starts.push_back(split(starts));
  }
  return program;
}

// All texts of a program that are not too long. Each place leads to one.
void add_texts(Automaton& automaton, Automaton::Place place, const std::string& so_far, Texts& texts) {
  if (automaton.may_end(place)) texts.insert(so_far);
  if (so_far.size() == kLongest) return;
  for (const char byte : {'a', 'b', 'c'}) {
    automaton.set_budget(1 << 20);
    const Automaton::Place next = automaton.after(place, std::string(1, byte));
    if (next != Automaton::kNowhere) add_texts(automaton, next, so_far + byte, texts);
  }
}

Texts followed(GrammarProgram program) {
  Texts texts;
  if (!prepare(program)) return texts;
  CHECK(program.is_sound());
  Automaton automaton(std::move(program));
  add_texts(automaton, automaton.start(), "", texts);
  return texts;
}

}  // namespace

TEST(rules_that_begin_with_themselves_have_the_texts_that_they_have) {
  const std::vector<Rules> cases = {
      {{{"Aa", "b"}}},
      {{{"BAa", "b"}, {"", "c"}}},  // after a part that may be empty
      {{{"BCAa", "b"}, {"", "c"}, {"a?"}}},
      {{{"B*Aa", "b"}, {"c"}}},
      {{{"AA", "a", ""}}},           // itself is such a part
      {{{"BA", "a"}, {"Ab", ""}}},   // by way of another
      {{{"B+a", "c"}, {"A", "b"}}},  // in a repetition
      {{{"B2a", "c"}, {"Ab", ""}}},
      {{{"BAc", "a"}, {"BBb", "", "c"}}},  // after a part that is one too
      {{{"A", "a"}}},
      {{{"BA", "a"}, {"", "B"}}},
  };
  for (const Rules& rules : cases) CHECK(followed(program_of(rules)) == texts_of(rules));
}

TEST(random_grammars_have_the_texts_that_they_have) {
  std::mt19937 random(7);
  size_t texts = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    Rules rules{std::vector<std::vector<std::string>>(1 + random() % 3)};
    for (std::vector<std::string>& choices : rules.choices) {
      for (size_t left = 1 + random() % 3; left > 0; --left) {
        std::string& choice = choices.emplace_back();
        for (size_t symbols = random() % 4; symbols > 0; --symbols) {
          const bool is_rule = random() % 2 == 0;
          choice.push_back(is_rule ? static_cast<char>('A' + random() % rules.choices.size()) : "abc"[random() % 3]);
          if (random() % 6 == 0) choice.push_back(is_rule ? "?*+2"[random() % 4] : '?');
        }
      }
    }
    const Texts expected = texts_of(rules);
    try {
      CHECK(followed(program_of(rules)) == expected);
    } catch (const Error&) {  // ways to read a text multiply
      ++refused;
    }
    texts += expected.size();
  }
  CHECK(texts > 15'000);
  CHECK(refused < 50);
}

TEST(a_rule_with_a_limit_may_begin_with_itself_and_not_with_another_that_has_one) {
  // root ::= region ";"    region ::= root's region "a" | "a", of some characters
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},                               // 0
      {Kind::kByte, ';', 0, 0, 0},                               // 1
      {Kind::kCall, 1, 0, 0, 1},                                 // 2: root
      {Kind::kRegion, 2, 3, GrammarProgram::kMaxCharacters, 0},  // 3
      {Kind::kByte, 'a', 0, 0, 0},                               // 4
      {Kind::kCall, 1, 0, 0, 4},                                 // 5
      {Kind::kSplit, 0, 2, 0, 0},                                // 6
      {Kind::kCall, 3, 0, 0, 4},                                 // 7: begins with it by way of another
  };
  program.lists = {5, 4};
  program.starts = {2, 3, 6, 2};
  GrammarProgram other = program;
  CHECK(prepare(program));
  Automaton automaton(program);
  for (const auto& [text, fits] : {std::pair{"a;", true}, {"aaa;", true}, {"aaaa;", false}, {";", false}}) {
    CHECK_EQUAL(automaton.after(automaton.start(), text) != Automaton::kNowhere, fits);
  }
  other.lists = {7, 4};
  other.nodes[2].next = 0;
  CHECK(error_of([&] { prepare(other); }) == ErrorCode::kInvalidArgument);
}

TEST(what_no_text_gets_to_the_end_of_is_removed) {
  const Rules rules = {{{"aBb", "aC", "c"}, {"B", "aB"}, {"bB", "b"}}};
  CHECK(followed(program_of(rules)) == texts_of(rules));
  GrammarProgram endless = program_of({{{"aA", "B"}, {"Ab"}}});
  CHECK(!prepare(endless));
}

}  // namespace turbomind::testing
