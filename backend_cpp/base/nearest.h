// Nearest known name of a misspelled one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace turbomind {

// "; did you mean NAME?" for the name of `known` with the fewest changes of single characters from `given`, or "" where
// more than a third of it would change.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& known);

}  // namespace turbomind
