#include "grammar/xgrammar.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
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
  ffi::Function read_regex = method("Grammar", "from_regex");
  ffi::Function read_ebnf = method("Grammar", "from_ebnf");
  ffi::Function read_lark = method("Grammar", "from_lark");
  ffi::Function read_tags = method("Grammar", "from_structural_tag");
  ffi::Function write = method("Grammar", "serialize_json");
};

class Xgrammar {
 public:
  explicit Xgrammar(const wire::Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  Xgrammar(const Xgrammar&) = delete;

  Format read(const std::string& response_format) const {
    try {
      return read_parsed(Json::parse(response_format));
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw invalid_argument("response_format cannot be compiled: " + without_source_place(error.what()));
    }
  }

 private:
  std::string source_of(const ffi::Any& grammar) const {
    return std::string(methods_.write(grammar).cast<ffi::String>());
  }

  GrammarProgram program_of(const ffi::Any& grammar) const { return grammar_program(source_of(grammar), parse_regex_); }

  Format read_parsed(const Json& format) const {
    const std::string& type = format.at("type").as_string();
    const auto text = [&] { return ffi::String(format.at(type).as_string()); };
    if (type == "grammar") return {program_of(methods_.read_ebnf(text(), ffi::String("root")))};
    if (type == "lark") {
      const ffi::Array<ffi::String> no_names, no_grammars;
      return {program_of(methods_.read_lark(text(), nullptr, no_names, no_grammars))};
    }
    if (type == "structural_tag") {
      const ffi::String tag(R"({"type":"structural_tag","format":)" + format.at(type).dump() + "}");
      return {program_of(methods_.read_tags(tag)), marks_in(format.at("names").as_string())};
    }
    throw invalid_argument(
        "response_format.type must be json_object, json_schema, regex_schema, grammar, lark or structural_tag, got " +
        type);
  }

  // Those special tokens whose texts a structural tag names. No others may come: a text in the tag could otherwise hold
  // any of them.
  SpecialTokens marks_in(const std::string& tags) const {
    const std::string plain = without_escapes(tags);
    const std::vector<int32_t>& stops = vocabulary_.stop_token_ids;
    SpecialTokens marks;
    for (const auto& [token, text] : vocabulary_.special) {
      const bool is_stop = std::find(stops.begin(), stops.end(), token) != stops.end();
      if (!is_stop && plain.find(without_escapes(text)) != std::string::npos) marks.emplace_back(token, text);
    }
    return marks;
  }

  // Texts are escaped in JSON, and once more in a grammar that is there.
  static std::string without_escapes(std::string text) {
    std::erase(text, '\\');
    return text;
  }

  const Methods methods_;
  const RegexParser parse_regex_ = [this](const std::string& regex) {
    return source_of(methods_.read_regex(ffi::String(regex), false));
  };
  const wire::Vocabulary& vocabulary_;
};

}  // namespace

FormatReader load_xgrammar(const wire::Vocabulary& vocabulary) {
  load_library();
  const auto reader = std::make_shared<const Xgrammar>(vocabulary);
  return [reader](const std::string& response_format) { return reader->read(response_format); };
}

}  // namespace turbomind
