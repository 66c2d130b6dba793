// Structured output by xgrammar's compiled core, reached through TVM-FFI out of the two packages' wheels.
//
// A library of its own (libturbomind_grammar.so), loaded by engine/load_grammar.cc when it is there: without the
// packages the engine works, and refuses response formats.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "engine/grammar.h"
#include "engine/load_grammar.h"
#include "grammar/format_limits.h"
#include "tvm/ffi/container/array.h"
#include "tvm/ffi/container/tensor.h"
#include "tvm/ffi/function.h"
#include "tvm/ffi/object.h"
#include "tvm/ffi/reflection/accessor.h"
#include "tvm/ffi/string.h"

namespace turbomind {

namespace {

namespace ffi = tvm::ffi;

constexpr size_t kCacheBytes = size_t{256} << 20;
constexpr size_t kMaxRemembered = 256;
constexpr int kCompileThreads = 1;

const std::string kTypePrefix = "xgrammar.tvm_ffi_binding.";

ffi::Function method(const std::string& type, const char* name) {
  return ffi::reflection::GetMethod(kTypePrefix + type, name);
}

// Loads xgrammar's library, which lies beside TVM-FFI's package; it registers its types.
void load_xgrammar() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&TVMFFITypeKeyToIndex), &info) == 0) throw internal_error("cannot locate TVM-FFI");
  const auto packages = std::filesystem::canonical(info.dli_fname).parent_path().parent_path().parent_path();
  const auto library = packages / "xgrammar" / "libxgrammar_bindings.so";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw Error(ErrorCode::kNotFound, dlerror());
}

// xgrammar's messages begin with "[time] file:line: ", which means nothing to the user.
std::string without_source_place(std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  const size_t file = message.find(".cc:");
  const size_t text = file == std::string::npos ? file : message.find(": ", file);
  return text == std::string::npos ? message : message.substr(text + 2);
}

struct Methods {
  ffi::Function new_tokenizer = method("TokenizerInfo", "__ffi_init__");
  ffi::Function new_compiler = method("GrammarCompiler", "__ffi_init__");
  ffi::Function compile_json_schema = method("GrammarCompiler", "compile_json_schema");
  ffi::Function compile_json = method("GrammarCompiler", "compile_builtin_json_grammar");
  ffi::Function compile_regex = method("GrammarCompiler", "compile_regex");
  ffi::Function compile_ebnf = method("GrammarCompiler", "compile_grammar_from_strings");
  ffi::Function new_matcher = method("GrammarMatcher", "__ffi_init__");
  ffi::Function fill_mask = method("GrammarMatcher", "fill_next_token_bitmask");
  ffi::Function accept = method("GrammarMatcher", "accept_token");
  ffi::Function is_terminated = method("GrammarMatcher", "is_terminated");
};

class XgrammarMatcher final : public GrammarMatcher {
 public:
  XgrammarMatcher(const Methods& methods, ffi::Any matcher) : methods_(methods), matcher_(std::move(matcher)) {}

  void fill_mask(std::vector<int32_t>& mask) override {
    int64_t shape[1] = {static_cast<int64_t>(mask.size())};
    int64_t strides[1] = {1};
    DLTensor view{mask.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, shape, strides, 0};
    // False: every token may come, and the mask was left as it is.
    if (!methods_.fill_mask(matcher_, ffi::TensorView(&view), 0, false).cast<bool>())
      std::fill(mask.begin(), mask.end(), -1);
  }

  bool accept(int32_t token) override { return methods_.accept(matcher_, token, false).cast<bool>(); }

  bool is_finished() override { return methods_.is_terminated(matcher_).cast<bool>(); }

 private:
  const Methods& methods_;
  ffi::Any matcher_;
};

class XgrammarGrammar final : public Grammar {
 public:
  XgrammarGrammar(const Methods& methods, ffi::Any compiled) : methods_(methods), compiled_(std::move(compiled)) {}

  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const override {
    ffi::Array<int64_t> stops;
    for (const int32_t token : stop_token_ids) stops.push_back(token);
    // With no way to end by a token, the grammar's own end ends the answer.
    const bool ends_by_itself = stop_token_ids.empty();
    return std::make_unique<XgrammarMatcher>(
        methods_, methods_.new_matcher(compiled_, ends_by_itself ? ffi::Any(nullptr) : ffi::Any(stops), ends_by_itself,
                                       -1, nullptr));
  }

 private:
  const Methods& methods_;
  ffi::Any compiled_;
};

class XgrammarCompiler final : public GrammarCompiler {
 public:
  XgrammarCompiler(const std::vector<std::string>& vocabulary, int vocab_size,
                   const std::vector<int32_t>& stop_token_ids)
      : compiler_(new_compiler(vocabulary, vocab_size, stop_token_ids)) {
    // xgrammar lets strings of bounded length hold control characters, which JSON forbids. Compact JSON has none at
    // all, so for schemas the tokens that have one do not exist.
    std::vector<std::string> printable = vocabulary;
    for (std::string& bytes : printable) {
      if (std::any_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c < 0x20; })) bytes.clear();
    }
    schema_compiler_ = new_compiler(printable, vocab_size, stop_token_ids);
  }

  std::shared_ptr<const Grammar> compile(const std::string& response_format) override {
    if (const auto known = known_.find(response_format); known != known_.end()) return known->second;
    try {
      auto grammar = std::make_shared<XgrammarGrammar>(methods_, compile_parsed(Json::parse(response_format)));
      if (known_.size() >= kMaxRemembered) known_.clear();
      known_.emplace(response_format, grammar);
      return grammar;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw invalid_argument("response_format cannot be compiled: " + without_source_place(error.what()));
    }
  }

 private:
  ffi::Any new_compiler(const std::vector<std::string>& vocabulary, int vocab_size,
                        const std::vector<int32_t>& stop_token_ids) {
    ffi::Array<ffi::Any> tokens;
    for (const std::string& bytes : vocabulary) tokens.push_back(ffi::Bytes(bytes));
    ffi::Array<int64_t> stops;
    for (const int32_t token : stop_token_ids) stops.push_back(token);
    constexpr int kRaw = 0;  // the vocabulary's strings are the bytes themselves
    const ffi::Any tokenizer = methods_.new_tokenizer(tokens, kRaw, vocab_size, stops, false);
    return methods_.new_compiler(tokenizer, kCompileThreads, true, static_cast<int64_t>(kCacheBytes));
  }

  ffi::Any compile_parsed(const Json& format) {
    const std::string& type = format.at("type").as_string();
    if (type == "json_object") return methods_.compile_json(compiler_);
    if (type == "json_schema") {
      const Json& member = format.at("json_schema");
      const Json* schema = member.find("schema");
      const std::string text = (schema != nullptr ? *schema : member).dump();
      check_schema_limits(text);
      constexpr bool kAnyWhitespace = false;  // compact output ends; a model may otherwise write spaces for ever
      return methods_.compile_json_schema(schema_compiler_, ffi::String(text), kAnyWhitespace, nullptr, nullptr, true,
                                          nullptr, false);
    }
    if (type == "regex_schema") {
      const std::string& regex = format.at("regex_schema").as_string();
      check_regex_limits(regex);
      return methods_.compile_regex(compiler_, ffi::String(regex));
    }
    if (type == "grammar") {
      const std::string& grammar = format.at("grammar").as_string();
      check_grammar_limits(grammar);
      return methods_.compile_ebnf(compiler_, ffi::String(grammar), ffi::String("root"));
    }
    throw invalid_argument("response_format.type must be json_object, json_schema, regex_schema or grammar, got " +
                           type);
  }

  Methods methods_;
  ffi::Any compiler_;
  ffi::Any schema_compiler_;
  std::unordered_map<std::string, std::shared_ptr<const Grammar>> known_;
};

}  // namespace

}  // namespace turbomind

extern "C" __attribute__((visibility("default"))) turbomind::GrammarCompiler* turbomind_new_grammar_compiler(
    const std::vector<std::string>& vocabulary, int vocab_size, const std::vector<int32_t>& stop_token_ids) {
  turbomind::load_xgrammar();
  return new turbomind::XgrammarCompiler(vocabulary, vocab_size, stop_token_ids);
}
