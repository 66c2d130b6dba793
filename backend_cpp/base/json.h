// A small JSON reader for the engine's own files (spec, manifest, safetensors headers, configuration).
//
// Values are immutable after parsing. Typed accessors throw Error(kInvalidArgument) naming the key and what was
// expected. Object keys keep their order; duplicate keys: the last one counts. Numbers are doubles (exact for integers
// below 2^53).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace turbomind {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  // Parses a whole document; trailing text other than white space is an error. Nesting is limited to 256 levels.
  static Json parse(std::string_view text);
  static Json parse_file(const std::string& path);

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_number() const { return std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }

  bool as_bool() const;
  double as_double() const;
  int64_t as_int() const;  // refuses fractions
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;

  // Member `key` of an object, or item `index` of an array; throws when it is missing.
  const Json& at(std::string_view key) const;
  const Json& at(size_t index) const;
  // Member `key`, or nullptr when missing or null.
  const Json* find(std::string_view key) const;

  // Compact text.
  std::string dump() const;

 private:
  friend class JsonParser;
  std::variant<std::nullptr_t, bool, double, std::string, Array, Object> value_ = nullptr;
};

// The text as JSON.
std::string quoted(const std::string& text);

}  // namespace turbomind
