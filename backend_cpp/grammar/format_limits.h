// Bounds on what is handed to the grammar compiler, whose time and memory grow with the expanded size of its input.
//
// A compilation cannot be interrupted, so what could take minutes is refused before it starts. Each throws
// Error(kInvalidArgument) that names the limit.
#pragma once

#include <string>

namespace turbomind {

void check_regex_limits(const std::string& regex);
void check_schema_limits(const std::string& schema);
void check_grammar_limits(const std::string& grammar);

}  // namespace turbomind
