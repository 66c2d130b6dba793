// Preparation of a grammar program: what no text ends in is removed, left recursion is refused.
#include "grammar/prepare_program.h"

#include <string>
#include <vector>

#include "engine/grammar/automaton.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

using Kind = GrammarProgram::Kind;

// root ::= "a" item "b" | "c"    item ::= FIRST "b" | "b", where FIRST is another call or nothing
GrammarProgram program_of(const GrammarProgram::Node& first) {
  GrammarProgram program;
  program.nodes = {
      {Kind::kReturn, 0, 0, 0, 0},  // 0
      {Kind::kByte, 'b', 0, 0, 0},  // 1
      {Kind::kCall, 1, 0, 0, 1},    // 2
      {Kind::kByte, 'a', 0, 0, 2},  // 3
      {Kind::kByte, 'c', 0, 0, 0},  // 4
      {Kind::kSplit, 0, 2, 0, 0},   // 5: root
      first,                        // 6
      {Kind::kSplit, 2, 2, 0, 0},   // 7: item
  };
  program.lists = {3, 4, 6, 1};
  program.starts = {5, 7, 0};  // the last rule is of the empty text
  return program;
}

}  // namespace

TEST(a_rule_that_comes_to_itself_before_anything_is_read_is_refused) {
  const auto error = [](const GrammarProgram::Node& first) {
    GrammarProgram program = program_of(first);
    try {
      prepare(program, {"root", "item", "blank"});
    } catch (const Error& rejection) {
      return std::string(rejection.what());
    }
    return std::string();
  };
  CHECK(error({Kind::kCall, 1, 0, 0, 1}).find("'item' begins with itself") != std::string::npos);
  CHECK(error({Kind::kRepeat, 1, 0, 3, 1}).find("'item' begins with itself") != std::string::npos);
  CHECK(error({Kind::kRepeat, 2, 1, 1, 2}).find("'item' begins with itself") != std::string::npos);  // after nothing
  CHECK(error({Kind::kCall, 0, 0, 0, 1}).empty());  // by way of the root, which has read something
}

TEST(what_no_text_gets_to_the_end_of_is_removed) {
  GrammarProgram program = program_of({Kind::kClass, 0, 0, 0, 1});  // of no character
  program.lists[3] = 6;
  CHECK(prepare(program));
  Automaton automaton(program);
  CHECK(automaton.after(automaton.start(), "c") != Automaton::kRejected);
  CHECK_EQUAL(automaton.after(automaton.start(), "a"), Automaton::kRejected);
  program.lists[1] = 3;
  CHECK(!prepare(program));
}

}  // namespace turbomind::testing
