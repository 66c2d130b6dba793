#include "grammar/format_text.h"

#include <cctype>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

// Characters beyond ASCII written as escapes, which means the same.
std::string as_ascii(const std::string& pattern) {
  std::string ascii;
  bool is_escaped = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const auto byte = static_cast<unsigned char>(pattern[i]);
    if (byte < 0x80) {
      ascii.push_back(pattern[i]);
      is_escaped = byte == '\\' && !is_escaped;
      continue;
    }
    unsigned code_point = byte >= 0xF0 ? byte & 0x07u : byte >= 0xE0 ? byte & 0x0Fu : byte & 0x1Fu;
    for (; i + 1 < pattern.size() && (static_cast<unsigned char>(pattern[i + 1]) & 0xC0) == 0x80; ++i) {
      code_point = code_point << 6 | (static_cast<unsigned char>(pattern[i + 1]) & 0x3Fu);
    }
    char escape[16];
    std::snprintf(escape, sizeof(escape), "%su{%X}", is_escaped ? "" : "\\", code_point);
    ascii += escape;
    is_escaped = false;
  }
  return ascii;
}

class Writer {
 public:
  explicit Writer(const TokenNumber& token_number) : token_number_(token_number) {}

  FormatText take() { return std::move(written_); }

  void write(const Json& value) {
    if (value.is_array()) {
      write_list(value, [this](const Json& item) { write(item); });
    } else if (value.is_object()) {
      write_object(value);
    } else {
      put(value.dump());
    }
  }

 private:
  void put(std::string_view text) { written_.text += text; }

  template <class Write>
  void write_list(const Json& list, const Write& write_item) {
    const char* before = "[";
    for (const Json& item : list.as_array()) {
      put(std::exchange(before, ","));
      write_item(item);
    }
    put(list.as_array().empty() ? "[]" : "]");
  }

  void write_object(const Json& object) {
    const Json* named = object.find("type");
    const std::string type = named != nullptr && named->is_string() ? named->as_string() : std::string();
    const Json* style = object.find("style");  // that values are not written as JSON
    const bool was_in_json = is_in_json_;
    if (type == "json_schema" && style != nullptr) is_in_json_ = style->is_string() && style->as_string() == "json";
    const char* before = "{";
    for (const auto& [key, member] : object.as_object()) {
      put(std::exchange(before, ","));
      put(quoted(key) + ":");
      write_member(type, key, member);
    }
    put(object.as_object().empty() ? "{}" : "}");
    is_in_json_ = was_in_json;
  }

  void write_member(const std::string& type, const std::string& key, const Json& member) {
    const bool is_value = key == "const" || key == "enum" || key == "default" || key == "examples";
    const bool names_tokens = key == "exclude_tokens" || key == "trigger_tokens";
    if (is_value) {
      put(member.dump());
    } else if (key == "pattern" && member.is_string()) {
      put(quoted(note_pattern(member.as_string(), type != "regex")));
      if (type == "regex") written_.regexes.push_back(member.as_string());
    } else if (key == "grammar" && type == "grammar" && member.is_string()) {
      put(member.dump());
      written_.grammars.push_back(member.as_string());
    } else if (key == "patternProperties" && member.is_object()) {
      const char* before = "{";
      for (const auto& [pattern, schema] : member.as_object()) {
        put(std::exchange(before, ","));
        put(quoted(note_pattern(pattern, true)) + ":");
        write(schema);
      }
      put(member.as_object().empty() ? "{}" : "}");
    } else if (key == "token" && type == "token") {
      write_token(member);
    } else if (names_tokens && member.is_array()) {
      write_list(member, [this](const Json& token) { write_token(token); });
    } else if (key == "rules" && type == "token_dispatch" && member.is_array()) {
      write_list(member, [this](const Json& rule) {
        bool is_first = true;
        write_list(rule, [&](const Json& part) { std::exchange(is_first, false) ? write_token(part) : write(part); });
      });
    } else {
      write(member);
    }
  }

  void write_token(const Json& token) {
    if (token.is_string()) {
      put(std::to_string(token_number_(token.as_string())));
    } else {
      write(token);
    }
  }

  std::string note_pattern(const std::string& pattern, bool is_of_string) {
    check_counts(pattern);
    std::string ascii = as_ascii(pattern);
    if (is_of_string && is_in_json_) written_.patterns.push_back(ascii);
    return ascii;
  }

  const TokenNumber& token_number_;
  FormatText written_;
  bool is_in_json_ = true;
};

}  // namespace

FormatText format_text(const Json& format, const TokenNumber& token_number) {
  Writer writer(token_number);
  writer.write(format);
  return writer.take();
}

void check_counts(const std::string& regex) {
  constexpr int kMaxDigits = 9;
  bool is_in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\') {
      ++i;
    } else if (is_in_class || c == '[') {
      is_in_class = c != ']';
    } else if (c == '{') {
      int digits = 0;
      for (size_t k = i + 1; k < regex.size() && regex[k] != '}'; ++k) {
        digits = std::isdigit(static_cast<unsigned char>(regex[k])) != 0 ? digits + 1 : 0;
        if (digits <= kMaxDigits) continue;
        throw invalid_argument("response_format: counts of repetitions must have at most 9 digits, got " +
                               regex.substr(i, 24));
      }
    }
  }
}

}  // namespace turbomind
