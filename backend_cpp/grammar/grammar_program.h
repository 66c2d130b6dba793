// Turns a grammar that xgrammar has read into the program that the engine follows (engine/grammar/program.h).
#pragma once

#include <functional>
#include <string>

#include "engine/grammar/program.h"

namespace turbomind {

// Returns the grammar of a regular expression, as the source below.
using RegexParser = std::function<std::string(const std::string& regex)>;

// Which numbers get bounds (number_bounds.h).
enum class Bounds {
  kNone,
  kBasic,  // those of xgrammar's rules of any JSON; others may be the user's
  kAll,    // but of patterns
};

// `source`: the JSON that xgrammar writes a grammar as, before it optimizes it. Throws Error(kInvalidArgument) for one
// that no text fits, and for one that cannot be followed.
GrammarProgram grammar_program(const std::string& source, const RegexParser& parse_regex, Bounds bounds);

// Whether a grammar has a number that continues without end.
bool has_endless_number(const std::string& source, const RegexParser& parse_regex);

}  // namespace turbomind
