// Turns a grammar that xgrammar has read into the program that the engine names places by (engine/grammar/automaton.h).
#pragma once

#include <functional>
#include <string>

#include "engine/grammar/automaton.h"

namespace turbomind {

// Returns the grammar of a regular expression, as the source below.
using RegexParser = std::function<std::string(const std::string& regex)>;

// `source`: the JSON that xgrammar writes a grammar as, before it optimizes it. An empty program for one that has what
// the engine does not know. Throws Error(kInvalidArgument) for what is no grammar.
Automaton::Program grammar_program(const std::string& source, const RegexParser& parse_regex);

}  // namespace turbomind
