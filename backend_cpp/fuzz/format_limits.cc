// Bounds of what a response format may be: refused or not, in bounded time. Input: r, s or g for a regular expression,
// a schema or EBNF, then its text.
#include "grammar/format_limits.h"

#include "fuzz/fuzz.h"

namespace turbomind {

FUZZ_TARGET(format_limits) {
  if (input.empty()) return;
  const std::string text(input.substr(1));
  fuzz::is_accepted([&] {
    if (input[0] == 'r') check_regex_limits(text);
    if (input[0] == 's') check_schema_limits(text);
    if (input[0] == 'g') check_grammar_limits(text);
  });
}

}  // namespace turbomind
