#include "grammar/format_limits.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace turbomind {

namespace {

constexpr size_t kMaxBytes = 64 << 10;
constexpr int64_t kMaxExpansion = 20000;  // characters after {m,n} is written out
constexpr int64_t kMaxLength = 100000;    // maxLength, maxItems and the like
constexpr int64_t kEnough = 1 << 30;      // beyond all of them; counts are not counted further

void require(bool holds, const std::string& what) {
  if (!holds) throw invalid_argument("response_format: " + what);
}

// Reads the largest count of a {m}, {m,} or {m,n} at `position`, which is after the brace; 1 for something else.
int64_t largest_count(const std::string& text, size_t position) {
  int64_t largest = 0;
  int64_t number = -1;
  for (; position < text.size() && text[position] != '}'; ++position) {
    if (std::isdigit(static_cast<unsigned char>(text[position])) != 0) {
      number = std::min<int64_t>((number < 0 ? 0 : number) * 10 + (text[position] - '0'), kEnough);
      largest = std::max(largest, number);
    } else if (text[position] == ',') {
      number = -1;
    } else if (std::isspace(static_cast<unsigned char>(text[position])) == 0) {
      return 1;
    }
  }
  return std::max<int64_t>(largest, 1);
}

enum class Syntax { kRegex, kEbnf };

// Size of a regular expression or grammar with its counted repetitions written out: groups multiply what is in them. In
// a grammar, blanks and comments are nothing, and what is in quotes is one item.
int64_t expanded_size(const std::string& regex, Syntax syntax) {
  struct Group {
    int64_t size = 0;
    int64_t last = 0;  // size of the last item, which a count multiplies
  };
  std::vector<Group> groups(1);
  bool is_in_class = false;
  const bool is_ebnf = syntax == Syntax::kEbnf;
  const auto add = [&](int64_t size) {
    groups.back().size = std::min(groups.back().size + size, kEnough);
    groups.back().last = size;
  };
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\') {
      ++i;
      if (!is_in_class) add(1);
    } else if (is_in_class) {
      is_in_class = c != ']';
    } else if (c == '[') {
      is_in_class = true;
      add(1);
    } else if (is_ebnf && std::isspace(static_cast<unsigned char>(c)) != 0) {
      continue;
    } else if (is_ebnf && c == '#') {
      i = std::min(regex.find('\n', i), regex.size());
    } else if (is_ebnf && c == '"') {
      const size_t first = i;
      for (++i; i < regex.size() && regex[i] != '"'; ++i) i += regex[i] == '\\' ? 1 : 0;
      add(static_cast<int64_t>(std::max<size_t>(i - first, 2)) - 1);
    } else if (c == '(') {
      require(groups.size() < 200, "it must not be nested deeper than 200 groups");
      groups.emplace_back();
    } else if (c == ')' && groups.size() > 1) {
      const int64_t size = groups.back().size;
      groups.pop_back();
      add(size);
    } else if (c == '{') {
      const int64_t extra = (largest_count(regex, i + 1) - 1) * std::max<int64_t>(groups.back().last, 1);
      groups.back().size = std::min(groups.back().size + extra, kEnough);
      groups.back().last = std::min(groups.back().last + extra, kEnough);
    } else {
      add(1);
    }
  }
  int64_t total = 0;
  for (const Group& group : groups) total += group.size;
  return total;
}

void check_schema_values(const Json& value, int depth) {
  require(depth < 64, "the schema must not be nested deeper than 64 levels");
  if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) {
      const bool is_length = key == "maxLength" || key == "minLength" || key == "maxItems" || key == "minItems" ||
                             key == "maxProperties" || key == "minProperties";
      if (is_length && member.is_number()) {
        require(member.as_double() <= kMaxLength, key + " must be at most " + std::to_string(kMaxLength));
      }
      if (key == "pattern" && member.is_string()) check_regex_limits(member.as_string());
      check_schema_values(member, depth + 1);
    }
  } else if (value.is_array()) {
    for (const Json& item : value.as_array()) check_schema_values(item, depth + 1);
  }
}

void check_size(const std::string& text, const char* what) {
  require(!text.empty(), std::string(what) + " must not be empty");
  require(text.size() <= kMaxBytes, std::string(what) + " must be at most " + std::to_string(kMaxBytes) +
                                        " bytes long, got " + std::to_string(text.size()));
}

}  // namespace

void check_regex_limits(const std::string& regex) {
  check_size(regex, "the regular expression");
  const int64_t size = expanded_size(regex, Syntax::kRegex);
  require(size <= kMaxExpansion, "the regular expression must have at most " + std::to_string(kMaxExpansion) +
                                     " characters with its repetitions written out, got " + std::to_string(size));
}

void check_schema_limits(const std::string& schema) {
  check_size(schema, "the schema");
  check_schema_values(Json::parse(schema), 0);
}

void check_grammar_limits(const std::string& grammar) {
  check_size(grammar, "the grammar");
  require(expanded_size(grammar, Syntax::kEbnf) <= kMaxExpansion, "the grammar must have at most " +
                                                                      std::to_string(kMaxExpansion) +
                                                                      " characters with its repetitions written out");
}

}  // namespace turbomind
