// Turns a grammar that xgrammar has read into the program that the engine follows (engine/grammar/program.h).
#pragma once

#include <string>

#include "engine/grammar/program.h"

namespace turbomind {

// Returns the grammar of a regular expression, as the source below.
using RegexParser = std::string (*)(const std::string& regex);

// `source`: the JSON that xgrammar writes a grammar as, before it optimizes it. Throws Error(kInvalidArgument) for one
// that no text fits, and for one that cannot be followed.
GrammarProgram grammar_program(const std::string& source, RegexParser parse_regex);

}  // namespace turbomind
