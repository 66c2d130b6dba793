// The library turbomind_grammar: reads grammars with xgrammar, reached through TVM-FFI out of the two packages' wheels,
// for lmdeploy/grammars/__main__.py.
#include <dlfcn.h>

#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "grammar/grammar_program.h"
#include "tvm/ffi/container/array.h"
#include "tvm/ffi/container/tensor.h"
#include "tvm/ffi/function.h"
#include "tvm/ffi/object.h"
#include "tvm/ffi/reflection/accessor.h"
#include "tvm/ffi/string.h"

namespace turbomind {

namespace {

namespace ffi = tvm::ffi;

ffi::Function method(const char* name) {
  return ffi::reflection::GetMethod("xgrammar.tvm_ffi_binding.Grammar", name);
}

// Loads xgrammar's library, which is alongside TVM-FFI's package; it registers its types.
bool load_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&TVMFFITypeKeyToIndex), &info) == 0) throw internal_error("cannot locate TVM-FFI");
  const auto packages = std::filesystem::canonical(info.dli_fname).parent_path().parent_path().parent_path();
  const auto library = packages / "xgrammar" / "libxgrammar_bindings.so";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw internal_error(dlerror());
  return true;
}

std::string source_of(const ffi::Any& grammar) {
  static const ffi::Function write = method("serialize_json");
  return std::string(write(grammar).cast<ffi::String>());
}

std::string source_of_regex(const std::string& regex) {
  static const ffi::Function read = method("from_regex");
  return source_of(read(ffi::String(regex), false));
}

ffi::Any parsed(std::string_view kind, const ffi::String& text) {
  static const ffi::Function ebnf = method("from_ebnf"), lark = method("from_lark"),
                             tag = method("from_structural_tag");
  const ffi::Array<ffi::String> none;
  if (kind == "grammar") return ebnf(text, ffi::String("root"));
  return kind == "lark" ? lark(text, nullptr, none, none) : tag(text);
}

std::string program_bytes(std::string_view kind, const std::string& text) {
  static const bool is_loaded = load_library();
  static_cast<void>(is_loaded);
  return grammar_program(source_of(parsed(kind, ffi::String(text))), source_of_regex).bytes();
}

}  // namespace

}  // namespace turbomind

// Reads a text of that kind, grammar, lark or structural_tag, and returns a type of frame (process_compiler.cc); of M
// there are no bytes. `bytes`: the program, or the reason why there is none; they live until the next call.
extern "C" __attribute__((visibility("default"))) int turbomind_grammar_read(const char* kind, const char* text,
                                                                             size_t size, const char** bytes,
                                                                             size_t* length) {
  using namespace turbomind;
  static std::string result;
  int type = 'P';
  try {
    result = program_bytes(kind, std::string(text, size));
  } catch (const std::bad_alloc&) {
    return 'M';
  } catch (const Error& error) {
    result = error.what();
    type = error.code() == ErrorCode::kInvalidArgument ? 'R' : 'F';
  } catch (const std::exception& error) {
    result = error.what();
    type = 'R';
  }
  *bytes = result.data();
  *length = result.size();
  return type;
}
