// Finds the program that parses response formats, if it is installed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_process.h"

namespace turbomind {

// turbomind_grammar is next to this library or two folders above it (lmdeploy/). Null if it is missing or cannot be
// started; `reason` says why. `vocabulary`: the bytes of each token, none for special ones, whose texts are
// in `special`. `seconds`: of processor time that reading a format may take.
std::unique_ptr<GrammarCompiler> load_grammar_compiler(std::vector<std::string> vocabulary,
                                                       const SpecialTokens& special,
                                                       const std::vector<int32_t>& stop_token_ids, double seconds,
                                                       std::string& reason);

}  // namespace turbomind
