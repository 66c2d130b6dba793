// Rewriting of a program (engine/grammar/program.h) before an automaton follows it.
#pragma once

#include "engine/grammar/program.h"

namespace turbomind {

// Removes ways that no text gets to the end of, so that a response comes to no dead end; rewrites left recursion, since
// rules that come to themselves before anything is read have no end of stacks; finds the shortest texts of rules.
// False: no text fits the program. Throws Error(kInvalidArgument) for left recursion in regions with limits.
bool prepare(GrammarProgram& program);

}  // namespace turbomind
