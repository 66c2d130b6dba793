// Turns a grammar that xgrammar has read into the program that the engine names places by (engine/grammar/automaton.h).
#pragma once

#include <string>

#include "engine/grammar/automaton.h"

namespace turbomind {

// `source`: the JSON that xgrammar writes a grammar as, before it optimizes it. An empty program for one that has what
// the engine does not know. Throws Error(kInvalidArgument) for what is no grammar.
Automaton::Program grammar_program(const std::string& source);

}  // namespace turbomind
