#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr int kMaxDepth = 256;

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

}  // namespace

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json document() {
    Json value = parse_value(0);
    skip_space();
    if (pos_ != text_.size()) fail("unexpected text after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw invalid_argument("invalid JSON at byte " + std::to_string(pos_) + ": " + what);
  }

  void skip_space() {
    while (pos_ < text_.size() &&
           (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\t' || text_[pos_] == '\r')) {
      ++pos_;
    }
  }

  char peek() {
    skip_space();
    if (pos_ == text_.size()) fail("unexpected end");
    return text_[pos_];
  }

  void expect(char c) {
    if (peek() != c) fail(std::string("expected '") + c + "'");
    ++pos_;
  }

  void expect_word(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) fail("unknown word");
    pos_ += word.size();
  }

  Json parse_value(int depth) {
    if (depth > kMaxDepth) fail("nested too deeply");
    Json result;
    switch (peek()) {
      case '{':
        result.value_ = parse_object(depth);
        break;
      case '[':
        result.value_ = parse_array(depth);
        break;
      case '"':
        result.value_ = parse_string();
        break;
      case 't':
        expect_word("true");
        result.value_ = true;
        break;
      case 'f':
        expect_word("false");
        result.value_ = false;
        break;
      case 'n':
        expect_word("null");
        break;
      default:
        result.value_ = parse_number();
    }
    return result;
  }

  Json::Object parse_object(int depth) {
    Json::Object object;
    expect('{');
    if (peek() == '}') {
      ++pos_;
      return object;
    }
    while (true) {
      if (peek() != '"') fail("expected a key");
      std::string key = parse_string();
      expect(':');
      object.emplace_back(std::move(key), parse_value(depth + 1));
      if (peek() == ',') {
        ++pos_;
        continue;
      }
      expect('}');
      return object;
    }
  }

  Json::Array parse_array(int depth) {
    Json::Array array;
    expect('[');
    if (peek() == ']') {
      ++pos_;
      return array;
    }
    while (true) {
      array.push_back(parse_value(depth + 1));
      if (peek() == ',') {
        ++pos_;
        continue;
      }
      expect(']');
      return array;
    }
  }

  uint32_t parse_hex4() {
    if (pos_ + 4 > text_.size()) fail("unfinished \\u escape");
    uint32_t code = 0;
    auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + pos_ + 4, code, 16);
    if (error != std::errc() || end != text_.data() + pos_ + 4) fail("bad \\u escape");
    pos_ += 4;
    return code;
  }

  // Code point after \u: a character, or both halves of a surrogate pair.
  uint32_t parse_code_point() {
    const uint32_t code = parse_hex4();
    if (code < 0xD800 || code > 0xDFFF) return code;
    if (code > 0xDBFF || text_.substr(pos_, 2) != "\\u") fail("half a surrogate pair");
    pos_ += 2;
    const uint32_t low = parse_hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair");
    return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }

  std::string parse_string() {
    expect('"');
    std::string out;
    while (true) {
      if (pos_ >= text_.size()) fail("unfinished string");
      char c = text_[pos_++];
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (pos_ >= text_.size()) fail("unfinished string");
      switch (c = text_[pos_++]) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'u':
          append_utf8(out, parse_code_point());
          break;
        case '"':
        case '\\':
        case '/':
          out += c;
          break;
        default:
          fail("unknown escape");
      }
    }
  }

  double parse_number() {
    double number = 0;
    auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), number);
    if (error != std::errc() || !std::isfinite(number)) fail("expected a value");
    pos_ = static_cast<size_t>(end - text_.data());
    return number;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

Json Json::parse(std::string_view text) {
  return JsonParser(text).document();
}

Json Json::parse_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kNotFound, "cannot open " + path);
  std::stringstream content;
  content << file.rdbuf();
  try {
    return parse(content.str());
  } catch (const Error& error) {
    throw invalid_argument(path + ": " + error.what());
  }
}

std::string Json::dump() const {
  if (is_null()) return "null";
  if (const bool* value = std::get_if<bool>(&value_)) return *value ? "true" : "false";
  if (const auto* value = std::get_if<std::string>(&value_)) return quoted(*value);
  if (const double* value = std::get_if<double>(&value_)) {
    char text[32];
    std::snprintf(text, sizeof(text), *value == std::floor(*value) && std::fabs(*value) < 1e15 ? "%.0f" : "%.17g",
                  *value);
    return text;
  }
  std::string out;
  if (const auto* array = std::get_if<Array>(&value_)) {
    for (const Json& item : *array) out += (out.empty() ? "" : ",") + item.dump();
    return "[" + out + "]";
  }
  for (const auto& [key, item] : as_object()) out += (out.empty() ? "" : ",") + quoted(key) + ":" + item.dump();
  return "{" + out + "}";
}

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  throw invalid_argument("expected true or false");
}

double Json::as_double() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  throw invalid_argument("expected a number");
}

int64_t Json::as_int() const {
  const double number = as_double();
  if (number != std::floor(number) || std::fabs(number) > 9e15) throw invalid_argument("expected an integer");
  return static_cast<int64_t>(number);
}

const std::string& Json::as_string() const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  throw invalid_argument("expected a string");
}

const Json::Array& Json::as_array() const {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  throw invalid_argument("expected an array");
}

const Json::Object& Json::as_object() const {
  if (const auto* value = std::get_if<Object>(&value_)) return *value;
  throw invalid_argument("expected an object");
}

const Json& Json::at(std::string_view key) const {
  const Object& object = as_object();
  const auto it =
      std::find_if(object.rbegin(), object.rend(), [key](const auto& member) { return member.first == key; });
  if (it == object.rend()) throw invalid_argument("missing key \"" + std::string(key) + "\"");
  return it->second;
}

const Json& Json::at(size_t index) const {
  const Array& array = as_array();
  if (index >= array.size()) {
    throw invalid_argument("expected at least " + std::to_string(index + 1) + " items, got " +
                           std::to_string(array.size()));
  }
  return array[index];
}

const Json* Json::find(std::string_view key) const {
  const Object& object = as_object();
  const auto it =
      std::find_if(object.rbegin(), object.rend(), [key](const auto& member) { return member.first == key; });
  return it == object.rend() || it->second.is_null() ? nullptr : &it->second;
}

}  // namespace turbomind
