#include "engine/grammar/load_grammar.h"

#include <dlfcn.h>

#include <filesystem>
#include <utility>

#include "engine/grammar/process_compiler.h"

namespace turbomind {

std::unique_ptr<GrammarCompiler> load_grammar_compiler(std::vector<std::string> vocabulary,
                                                       const SpecialTokens& special,
                                                       const std::vector<int32_t>& stop_token_ids, double seconds,
                                                       std::string& reason) {
  namespace fs = std::filesystem;
  try {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&load_grammar_compiler), &info) == 0) throw internal_error("where is this?");
    const fs::path here = fs::canonical(info.dli_fname).parent_path();
    for (const fs::path& folder : {here, here.parent_path().parent_path()}) {
      const fs::path program = folder / "turbomind_grammar";
      if (!fs::exists(program)) continue;
      return std::make_unique<ProcessCompiler>(program, std::move(vocabulary), special, stop_token_ids, seconds);
    }
    reason = "turbomind_grammar was not built";
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return nullptr;
}

}  // namespace turbomind
