#include "grammar/xgrammar.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "grammar/format_limits.h"
#include "grammar/format_text.h"
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

constexpr int kCompileThreads = 1;      // so that it starts none
constexpr bool kCaches = false;         // a process compiles once
constexpr bool kAnyWhitespace = false;  // compact output ends; a model may otherwise write spaces forever

const std::string kTypePrefix = "xgrammar.tvm_ffi_binding.";

ffi::Function method(const std::string& type, const char* name) {
  return ffi::reflection::GetMethod(kTypePrefix + type, name);
}

// Loads xgrammar's library, which is alongside TVM-FFI's package; it registers its types.
void load_library() {
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
  ffi::Function compile_regex = method("GrammarCompiler", "compile_regex");
  ffi::Function compile_tags = method("GrammarCompiler", "compile_structural_tag");
  ffi::Function compile_ebnf = method("GrammarCompiler", "compile_grammar_from_strings");
  ffi::Function compile_lark = method("GrammarCompiler", "compile_lark");
  ffi::Function new_matcher = method("GrammarMatcher", "__ffi_init__");
  ffi::Function fill_mask = method("GrammarMatcher", "fill_next_token_bitmask");
  ffi::Function accept = method("GrammarMatcher", "accept_token");
  ffi::Function is_terminated = method("GrammarMatcher", "is_terminated");
  ffi::Function memory_size = method("CompiledGrammar", "memory_size_bytes");
  ffi::Function parse_json_schema = method("Grammar", "from_json_schema");
  ffi::Function parse_regex = method("Grammar", "from_regex");
  ffi::Function parse_ebnf = method("Grammar", "from_ebnf");
  ffi::Function parse_lark = method("Grammar", "from_lark");
  ffi::Function parse_tags = method("Grammar", "from_structural_tag");
  ffi::Function write = method("Grammar", "serialize_json");
};

class XgrammarMatcher final : public TokenMatcher {
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

// Calls xgrammar for a response format. Throws Error(kInvalidArgument) where it throws.
template <class Work>
auto as_format_error(const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw invalid_argument("response_format cannot be compiled: " + without_source_place(error.what()));
  }
}

class XgrammarFormat final : public Format {
 public:
  struct Parts {
    std::function<ffi::Any()> compile;
    ffi::Any source;
    SpecialTokens marks = {};
  };

  XgrammarFormat(const Methods& methods, Parts parts, bool is_printable)
      : methods_(methods), parts_(std::move(parts)), is_printable_(is_printable) {}

  void compile() override { compiled_ = as_format_error(parts_.compile); }

  std::unique_ptr<TokenMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const override {
    ffi::Array<int64_t> stops;
    for (const int32_t token : stop_token_ids) stops.push_back(token);
    // With no way to end by a token, the grammar's own end ends the response.
    const bool ends_by_itself = stop_token_ids.empty();
    return std::make_unique<XgrammarMatcher>(
        methods_, methods_.new_matcher(compiled_, ends_by_itself ? ffi::Any(nullptr) : ffi::Any(stops), ends_by_itself,
                                       -1, nullptr));
  }

  size_t bytes() const override { return static_cast<size_t>(methods_.memory_size(compiled_).cast<int64_t>()); }

  bool is_printable() const override { return is_printable_; }

  const SpecialTokens& marks() const override { return parts_.marks; }

  std::string source() const override { return std::string(methods_.write(parts_.source).cast<ffi::String>()); }

 private:
  const Methods& methods_;
  const Parts parts_;
  const bool is_printable_;
  ffi::Any compiled_;
};

class XgrammarCompiler final : public FormatCompiler {
 public:
  XgrammarCompiler(const std::vector<std::string>& vocabulary, const SpecialTokens& special,
                   const std::vector<int32_t>& stop_token_ids)
      : vocabulary_(vocabulary),
        special_(special),
        stop_token_ids_(stop_token_ids),
        compiler_(new_compiler(vocabulary, stop_token_ids)) {
    // xgrammar lets strings of bounded length hold control characters, which JSON forbids. Compact JSON has none at
    // all, so for schemas the tokens that have one do not exist.
    std::vector<std::string> printable = vocabulary;
    for (std::string& bytes : printable) {
      if (std::any_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c < 0x20; })) bytes.clear();
    }
    schema_compiler_ = new_compiler(printable, stop_token_ids);
  }

  std::unique_ptr<Format> read(const std::string& response_format) override {
    return as_format_error([&] {
      const Json format = Json::parse(response_format);
      XgrammarFormat::Parts parts = read_parsed(format);
      const std::string& type = format.at("type").as_string();
      const bool is_printable = type == "json_schema" || type == "json_object";  // schema_compiler_'s
      return std::make_unique<XgrammarFormat>(methods_, std::move(parts), is_printable);
    });
  }

  std::string source_of_regex(const std::string& regex) override {
    return std::string(methods_.write(methods_.parse_regex(ffi::String(regex), false)).cast<ffi::String>());
  }

 private:
  ffi::Any new_compiler(const std::vector<std::string>& vocabulary, const std::vector<int32_t>& stop_token_ids) {
    ffi::Array<ffi::Any> tokens;
    for (const std::string& bytes : vocabulary) tokens.push_back(ffi::Bytes(bytes));
    ffi::Array<int64_t> stops;
    for (const int32_t token : stop_token_ids) stops.push_back(token);
    constexpr int kRaw = 0;  // the vocabulary's strings are the bytes themselves
    const ffi::Any tokenizer =
        methods_.new_tokenizer(tokens, kRaw, static_cast<int64_t>(vocabulary.size()), stops, false);
    return methods_.new_compiler(tokenizer, kCompileThreads, kCaches, int64_t{-1});
  }

  XgrammarFormat::Parts read_parsed(const Json& format) {
    const std::string& type = format.at("type").as_string();
    if (type == "json_object") return read_schema(Json::parse(R"({"type":"object"})"));
    if (type == "json_schema") {
      const Json& member = format.at("json_schema");
      const Json* schema = member.find("schema");
      return read_schema(schema != nullptr ? *schema : member);
    }
    if (type == "regex_schema") {
      const std::string& regex = format.at("regex_schema").as_string();
      check_regex_limits(regex);
      const ffi::String given(regex);
      return {[=, this] { return methods_.compile_regex(compiler_, given); }, methods_.parse_regex(given, false)};
    }
    if (type == "grammar") {
      const std::string& grammar = format.at("grammar").as_string();
      check_grammar_limits(grammar);
      const ffi::String given(grammar), root("root");
      return {[=, this] { return methods_.compile_ebnf(compiler_, given, root); }, methods_.parse_ebnf(given, root)};
    }
    if (type == "lark") {
      const std::string& grammar = format.at("lark").as_string();
      check_grammar_limits(grammar);
      const ffi::String given(grammar);
      const ffi::Array<ffi::String> no_names, no_grammars;
      return {[=, this] { return methods_.compile_lark(compiler_, given, no_names, no_grammars); },
              methods_.parse_lark(given, nullptr, no_names, no_grammars)};
    }
    if (type == "structural_tag") {
      const std::string text = R"({"type":"structural_tag","format":)" + written(format.at("structural_tag")) + "}";
      const ffi::String given(text);
      const SpecialTokens marks = marks_in(format.at("structural_tag").dump());
      return {[=, this] { return methods_.compile_tags(compiler_of(marks), given); }, methods_.parse_tags(given),
              marks};
    }
    throw invalid_argument(
        "response_format.type must be json_object, json_schema, regex_schema, grammar, lark or structural_tag, got " +
        type);
  }

  XgrammarFormat::Parts read_schema(const Json& schema) {
    const ffi::String given(written(schema));
    return {[=, this] {
              return methods_.compile_json_schema(schema_compiler_, given, kAnyWhitespace, nullptr, nullptr, true,
                                                  nullptr, false);
            },
            methods_.parse_json_schema(given, kAnyWhitespace, nullptr, nullptr, true, nullptr, false, false)};
  }

  // What xgrammar is to read of a schema or structural tag.
  std::string written(const Json& format) {
    check_schema_limits(format.dump());
    FormatText text = format_text(format, [this](const std::string& token) { return number_of(token); });
    for (const std::string& pattern : text.patterns) {
      const auto parse = [this](const std::string& regex) { return source_of_regex(regex); };
      if (fits_json_string(parse(pattern), parse)) continue;
      throw invalid_argument("response_format: the pattern " + pattern +
                             " needs characters that JSON escapes, which are not supported in a pattern");
    }
    return std::move(text.text);
  }

  int32_t number_of(const std::string& token) const {
    for (const auto& [number, text] : special_) {
      if (text == token) return number;
    }
    const auto known = token.empty() ? vocabulary_.end() : std::find(vocabulary_.begin(), vocabulary_.end(), token);
    if (known == vocabulary_.end()) throw invalid_argument("response_format: there is no token " + quoted(token));
    return static_cast<int32_t>(known - vocabulary_.begin());
  }

  // Those special tokens whose texts a structural tag names. No others may come: a text in the tag could otherwise hold
  // any of them.
  SpecialTokens marks_in(const std::string& tags) const {
    const std::string plain = without_escapes(tags);
    SpecialTokens marks;
    for (const auto& [token, text] : special_) {
      const bool is_stop = std::find(stop_token_ids_.begin(), stop_token_ids_.end(), token) != stop_token_ids_.end();
      if (!is_stop && plain.find(without_escapes(text)) != std::string::npos) marks.emplace_back(token, text);
    }
    return marks;
  }

  ffi::Any compiler_of(const SpecialTokens& marks) {
    if (marks.empty()) return compiler_;
    std::vector<std::string> vocabulary = vocabulary_;
    for (const auto& [token, text] : marks) vocabulary.at(static_cast<size_t>(token)) = text;
    return new_compiler(vocabulary, stop_token_ids_);
  }

  // Texts are escaped in JSON, and once more in a grammar that is there.
  static std::string without_escapes(std::string text) {
    std::erase(text, '\\');
    return text;
  }

  Methods methods_;
  const std::vector<std::string> vocabulary_;
  const SpecialTokens special_;
  const std::vector<int32_t> stop_token_ids_;
  ffi::Any compiler_;
  ffi::Any schema_compiler_;
};

}  // namespace

std::unique_ptr<FormatCompiler> load_xgrammar(const std::vector<std::string>& vocabulary, const SpecialTokens& special,
                                              const std::vector<int32_t>& stop_token_ids) {
  load_library();
  return std::make_unique<XgrammarCompiler>(vocabulary, special, stop_token_ids);
}

}  // namespace turbomind
