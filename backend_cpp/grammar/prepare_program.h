// Rewriting of a program (engine/grammar/program.h) before an automaton follows it.
#pragma once

#include <string>
#include <vector>

#include "engine/grammar/program.h"

namespace turbomind {

// Removes ways that no text gets to the end of, so that a response comes to no dead end, and finds the shortest texts
// of rules, whose names are for messages. False: no text fits the program. Throws Error(kInvalidArgument) for a rule
// that comes to itself before anything is read: there is no end of its stacks.
bool prepare(GrammarProgram& program, const std::vector<std::string>& names = {});

}  // namespace turbomind
