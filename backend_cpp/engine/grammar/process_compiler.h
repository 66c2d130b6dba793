// Compiles grammars: separate processes parse the formats, automata in this process follow the grammars.
//
// Grammars are cached while in use and after that (LRU, limited in number and bytes). Processes are reused, since
// starting one takes longer than parsing most formats.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/grammar.h"
#include "engine/grammar/token_trie.h"

namespace turbomind {

// `program`: the command of the processes. One is started soon, or when there is a format.
// `vocabulary`: the bytes of each token, none of a special one; `special`: those that may stand for their texts.
// `seconds`: of processor time that parsing a format may take.
std::unique_ptr<GrammarCompiler> load_grammar_compiler(std::vector<std::string> program,
                                                       std::vector<std::string> vocabulary, SpecialTokens special,
                                                       double seconds);

}  // namespace turbomind
