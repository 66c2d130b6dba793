#include "engine/load_grammar.h"

#include <dlfcn.h>

#include <filesystem>

namespace turbomind {

namespace {

using NewCompiler = GrammarCompiler* (*)(const std::vector<std::string>&, int, const std::vector<int32_t>&);

// The library is never unloaded: what it made lives in the engine.
NewCompiler find_factory(std::string& reason) {
  namespace fs = std::filesystem;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&find_factory), &info) == 0) return nullptr;
  const fs::path here = fs::canonical(info.dli_fname).parent_path();
  for (const fs::path& folder : {here, here.parent_path().parent_path()}) {
    const fs::path library = folder / "libturbomind_grammar.so";
    if (!fs::exists(library)) continue;
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      reason = dlerror();
      return nullptr;
    }
    return reinterpret_cast<NewCompiler>(dlsym(handle, "turbomind_new_grammar_compiler"));
  }
  reason = "libturbomind_grammar.so was not built";
  return nullptr;
}

}  // namespace

std::unique_ptr<GrammarCompiler> load_grammar_compiler(const TokenTable& tokens, int vocab_size,
                                                       const std::vector<int32_t>& stop_token_ids,
                                                       std::string& reason) {
  const NewCompiler factory = find_factory(reason);
  if (factory == nullptr) return nullptr;
  std::vector<std::string> vocabulary;
  for (int32_t token = 0; token < vocab_size; ++token) {
    // Special tokens have no text that a grammar could match.
    vocabulary.emplace_back(tokens.is_special(token) ? std::string_view() : tokens.bytes(token));
  }
  try {
    return std::unique_ptr<GrammarCompiler>(factory(vocabulary, vocab_size, stop_token_ids));
  } catch (const std::exception& error) {
    reason = error.what();
    return nullptr;
  }
}

}  // namespace turbomind
