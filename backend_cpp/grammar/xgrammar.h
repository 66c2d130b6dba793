// xgrammar's readers of formats, reached through TVM-FFI out of the two packages' wheels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace turbomind {

// Tokens that stand for a mark, and its text.
using SpecialTokens = std::vector<std::pair<int32_t, std::string>>;

struct Vocabulary {
  std::vector<std::string> tokens;  // the bytes of each; none: a special one
  SpecialTokens special;
  std::vector<int32_t> stop_token_ids;
};

// A format that was read.
struct Format {
  std::string source;         // the grammar as xgrammar writes it (grammar/grammar_program.h)
  SpecialTokens marks = {};   // special tokens that stand for their texts in it
  bool is_printable = false;  // whether no token with a control character may come, also where the source has them
};

class FormatReader {
 public:
  virtual ~FormatReader() = default;
  // `response_format`: the JSON text of turbomind/config.pbtxt. May take long. Throws Error(kInvalidArgument).
  virtual Format read(const std::string& response_format) = 0;
  // The grammar of a regular expression, as Format::source.
  virtual std::string source_of_regex(const std::string& regex) = 0;
};

// Loads xgrammar. Throws Error.
std::unique_ptr<FormatReader> load_xgrammar(Vocabulary vocabulary);

}  // namespace turbomind
