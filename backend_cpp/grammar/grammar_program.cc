#include "grammar/grammar_program.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace turbomind {

namespace {

// xgrammar's expressions: type, number of integers after it, and those.
enum Expression : int32_t {
  kBytes,
  kCharacters,      // whether they are those left out, then first and last of each range
  kCharactersStar,  // the same, any number of times
  kEmpty,
  kRule,
  kSequence,
  kChoices,
  kRepetition = 8,  // rule, least, most
  kRegex = 12,      // whether it is in a JSON string, then its characters
};

// What the engine does not know: a grammar with it has no program.
struct Unknown : std::exception {};

class ProgramBuilder {
 public:
  ProgramBuilder(const Json& grammar, const RegexParser& parse_regex) : parse_regex_(parse_regex) {
    end_ = add({Automaton::kReturn, 0, 0, 0, 0});
    if (add_rules(grammar) != 0) throw Unknown();
  }

  Automaton::Program take() { return std::move(program_); }

 private:
  // Expressions of one grammar.
  struct Expressions {
    std::vector<int32_t> data;
    std::vector<int32_t> places;   // in `data`
    std::vector<int32_t> numbers;  // of the rules in the program
  };

  static int32_t to_int(const Json& number) { return static_cast<int32_t>(number.as_int()); }

  static void copy(const Json& numbers, std::vector<int32_t>& to) {
    for (const Json& number : numbers.as_array()) to.push_back(to_int(number));
  }

  // Adds a grammar's rules, the root first. Returns the root's number.
  int32_t add_rules(const Json& grammar) {
    Expressions outer = std::exchange(expressions_, {});
    copy(grammar.at("grammar_expr_data"), expressions_.data);
    copy(grammar.at("grammar_expr_indptr"), expressions_.places);
    const auto root = static_cast<size_t>(grammar.at("root_rule_id").as_int());
    const Json::Array& rules = grammar.at("rules").as_array();
    if (root >= rules.size()) throw Unknown();
    const auto first = static_cast<int32_t>(program_.starts.size());
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      expressions_.numbers.push_back(first + static_cast<int32_t>(rule));
    }
    std::swap(expressions_.numbers[0], expressions_.numbers[root]);
    program_.starts.resize(program_.starts.size() + rules.size());
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      const Json::Array& fields = rules[rule].as_array();
      if (has_limits(fields)) throw Unknown();
      const int32_t start = build(to_int(fields.at(1)), end_, 0);
      program_.starts[static_cast<size_t>(number_of(static_cast<int32_t>(rule)))] = start;
    }
    expressions_ = std::move(outer);
    return first;
  }

  // Of a rule of Lark's: most tokens, most characters, a text that ends it, and whether it ends as soon as it can.
  static bool has_limits(const Json::Array& fields) {
    return fields.at(4).as_int() >= 0 || fields.at(5).as_int() >= 0 || !fields.at(6).as_string().empty() ||
           fields.at(7).as_bool();
  }

  int32_t add(const Automaton::Node& node) {
    program_.nodes.push_back(node);
    return static_cast<int32_t>(program_.nodes.size()) - 1;
  }

  int32_t number_of(int32_t rule) const { return expressions_.numbers.at(static_cast<size_t>(rule)); }

  int32_t split(const std::vector<int32_t>& nodes) {
    const auto first = static_cast<int32_t>(program_.lists.size());
    program_.lists.insert(program_.lists.end(), nodes.begin(), nodes.end());
    return add({Automaton::kSplit, first, static_cast<int32_t>(nodes.size()), 0, 0});
  }

  int32_t characters(const int32_t* values, int32_t count, int32_t next) {
    require_plain(values[0] == 0);
    for (int32_t i = 1; i + 1 < count; i += 2) require_plain(is_plain(values[i], values[i + 1]));
    const auto first = static_cast<int32_t>(program_.lists.size());
    program_.lists.insert(program_.lists.end(), values + 1, values + count);
    return add({Automaton::kClass, first, (count - 1) / 2, values[0] != 0 ? 1 : 0, next});
  }

  // Whether JSON strings hold these characters as they are.
  static bool is_plain(int32_t first, int32_t last) {
    const auto holds = [&](int32_t character) { return first <= character && character <= last; };
    return first >= 0x20 && !holds('"') && !holds('\\');
  }

  // What an expression in a JSON string says of other characters is not shown.
  void require_plain(bool holds) const {
    if (is_in_string_ && !holds) throw Unknown();
  }

  // The rule of a regular expression in a JSON string.
  int32_t regex(const int32_t* values, int32_t count) {
    std::string text;
    for (int32_t i = 1; i < count; ++i) {
      if (values[i] <= 0 || values[i] >= 0x80) throw Unknown();
      text.push_back(static_cast<char>(values[i]));
    }
    if (values[0] == 0 || is_in_string_) throw Unknown();
    is_in_string_ = true;
    std::string source;
    try {
      source = parse_regex_(text);
    } catch (const std::exception&) {
      throw Unknown();
    }
    const int32_t rule = add_rules(Json::parse(source));
    is_in_string_ = false;
    return rule;
  }

  // The node that reads an expression and continues at `next`.
  int32_t build(int32_t expression, int32_t next, int depth) {
    if (depth > 64) throw Unknown();
    const auto place = static_cast<size_t>(expressions_.places.at(static_cast<size_t>(expression)));
    const int32_t type = expressions_.data.at(place);
    const int32_t count = expressions_.data.at(place + 1);
    if (count < 0 || place + 2 + static_cast<size_t>(count) > expressions_.data.size()) throw Unknown();
    const int32_t* values = expressions_.data.data() + place + 2;
    const bool is_class = type == kCharacters || type == kCharactersStar;
    if ((is_class && count % 2 == 0) || (type == kRule && count != 1) || (type == kRepetition && count != 3)) {
      throw Unknown();
    }
    switch (type) {
      case kBytes:
        for (int32_t i = count; i-- > 0;) {
          require_plain(is_plain(values[i] & 0xFF, values[i] & 0xFF));
          next = add({Automaton::kByte, values[i] & 0xFF, 0, 0, next});
        }
        return next;
      case kCharacters:
        return characters(values, count, next);
      case kCharactersStar: {
        // Read again, or continue.
        const int32_t loop = split({next, next});
        program_.lists[static_cast<size_t>(program_.nodes[static_cast<size_t>(loop)].a)] =
            characters(values, count, loop);
        return loop;
      }
      case kEmpty:
        return next;
      case kRule:
        return add({Automaton::kCall, number_of(values[0]), 0, 0, next});
      case kSequence:
        for (int32_t i = count; i-- > 0;) next = build(values[i], next, depth + 1);
        return next;
      case kChoices: {
        std::vector<int32_t> nodes;
        for (int32_t i = 0; i < count; ++i) nodes.push_back(build(values[i], next, depth + 1));
        return split(nodes);
      }
      case kRepetition:
        return add({Automaton::kRepeat, number_of(values[0]), values[1], values[2], next});
      case kRegex:
        if (count < 2) throw Unknown();
        return add({Automaton::kCall, regex(values, count), 0, 0, next});
      default:
        throw Unknown();
    }
  }

  const RegexParser& parse_regex_;
  Expressions expressions_;  // of the grammar whose rules are added
  bool is_in_string_ = false;
  int32_t end_ = 0;
  Automaton::Program program_;
};

}  // namespace

Automaton::Program grammar_program(const std::string& source, const RegexParser& parse_regex) {
  try {
    return ProgramBuilder(Json::parse(source), parse_regex).take();
  } catch (const Unknown&) {
    return {};
  } catch (const std::out_of_range&) {
    return {};
  }
}

}  // namespace turbomind
