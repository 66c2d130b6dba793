// Bounds the digits of the numbers in a program made of a JSON schema, so that no number goes on until the response is
// cut.
#pragma once

#include <vector>

#include "engine/grammar/program.h"

namespace turbomind {

// Integers keep at most 19 digits, other numbers 17 significant digits, as many zeros before those, and 3 digits of an
// exponent; those whose shortest text has more keep as many as that has. Rules that read no more than 64 bytes, as
// those of listed values do, stay as they are.
//
// `program`: prepared. `is_of_schema`: whether a rule is one of a schema and no pattern; later rules are none.
// Returns whether there was such a number; the program then needs to be prepared again.
bool bound_numbers(GrammarProgram& program, const std::vector<bool>& is_of_schema);

}  // namespace turbomind
