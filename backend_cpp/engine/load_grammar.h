// Finds the library that compiles grammars, if it is installed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/answer/token_table.h"
#include "engine/grammar.h"

namespace turbomind {

// libturbomind_grammar.so lies beside this library or two folders above it (lmdeploy/). Null when it, xgrammar or
// TVM-FFI is not there; `reason` says why.
std::unique_ptr<GrammarCompiler> load_grammar_compiler(const TokenTable& tokens, int vocab_size,
                                                       const std::vector<int32_t>& stop_token_ids, std::string& reason);

}  // namespace turbomind
