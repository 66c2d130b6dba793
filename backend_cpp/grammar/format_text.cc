#include "grammar/format_text.h"

#include <string_view>
#include <utility>

namespace turbomind {

namespace {

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
    const char* before = "{";
    for (const auto& [key, member] : object.as_object()) {
      put(std::exchange(before, ","));
      put(quoted(key) + ":");
      write_member(type, key, member);
    }
    put(object.as_object().empty() ? "{}" : "}");
  }

  void write_member(const std::string& type, const std::string& key, const Json& member) {
    const bool names_tokens = key == "exclude_tokens" || key == "trigger_tokens";
    if (key == "json_schema") {
      put(member.dump());
    } else if (key == "pattern" && type == "regex" && member.is_string()) {
      put(member.dump());
      written_.regexes.push_back(member.as_string());
    } else if (key == "grammar" && type == "grammar" && member.is_string()) {
      put(member.dump());
      written_.grammars.push_back(member.as_string());
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

  const TokenNumber& token_number_;
  FormatText written_;
};

}  // namespace

FormatText format_text(const Json& tag, const TokenNumber& token_number) {
  Writer writer(token_number);
  writer.write(tag);
  return writer.take();
}

}  // namespace turbomind
