#include "grammar/grammar_program.h"

#include <algorithm>
#include <stdexcept>
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
};

// What the engine does not know: a grammar with it has no program.
struct Unknown : std::exception {};

class ProgramBuilder {
 public:
  explicit ProgramBuilder(const Json& grammar) {
    for (const Json& number : grammar.at("grammar_expr_data").as_array()) data_.push_back(to_int(number));
    for (const Json& number : grammar.at("grammar_expr_indptr").as_array()) places_.push_back(to_int(number));
    const auto root = static_cast<size_t>(grammar.at("root_rule_id").as_int());
    const Json::Array& rules = grammar.at("rules").as_array();
    if (root >= rules.size()) throw Unknown();
    // The root comes first: the two change places.
    numbers_.resize(rules.size());
    for (size_t rule = 0; rule < rules.size(); ++rule) numbers_[rule] = static_cast<int32_t>(rule);
    std::swap(numbers_[0], numbers_[root]);
    program_.starts.resize(rules.size());
    const int32_t end = add({Automaton::kReturn, 0, 0, 0, 0});
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      const int32_t body = to_int(rules[rule].as_array().at(1));
      program_.starts[static_cast<size_t>(numbers_[rule])] = build(body, end, 0);
    }
  }

  Automaton::Program take() { return std::move(program_); }

 private:
  static int32_t to_int(const Json& number) { return static_cast<int32_t>(number.as_int()); }

  int32_t add(const Automaton::Node& node) {
    program_.nodes.push_back(node);
    return static_cast<int32_t>(program_.nodes.size()) - 1;
  }

  int32_t number_of(int32_t rule) const { return numbers_.at(static_cast<size_t>(rule)); }

  int32_t split(const std::vector<int32_t>& nodes) {
    const auto first = static_cast<int32_t>(program_.lists.size());
    program_.lists.insert(program_.lists.end(), nodes.begin(), nodes.end());
    return add({Automaton::kSplit, first, static_cast<int32_t>(nodes.size()), 0, 0});
  }

  int32_t characters(const int32_t* values, int32_t count, int32_t next) {
    const auto first = static_cast<int32_t>(program_.lists.size());
    program_.lists.insert(program_.lists.end(), values + 1, values + count);
    return add({Automaton::kClass, first, (count - 1) / 2, values[0] != 0 ? 1 : 0, next});
  }

  // The node that reads an expression and continues at `next`.
  int32_t build(int32_t expression, int32_t next, int depth) {
    if (depth > 64) throw Unknown();
    const auto place = static_cast<size_t>(places_.at(static_cast<size_t>(expression)));
    const int32_t type = data_.at(place);
    const int32_t count = data_.at(place + 1);
    if (count < 0 || place + 2 + static_cast<size_t>(count) > data_.size()) throw Unknown();
    const int32_t* values = data_.data() + place + 2;
    const bool is_class = type == kCharacters || type == kCharactersStar;
    if ((is_class && count % 2 == 0) || (type == kRule && count != 1) || (type == kRepetition && count != 3)) {
      throw Unknown();
    }
    switch (type) {
      case kBytes:
        for (int32_t i = count; i-- > 0;) next = add({Automaton::kByte, values[i] & 0xFF, 0, 0, next});
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
      default:
        throw Unknown();
    }
  }

  std::vector<int32_t> data_;
  std::vector<int32_t> places_;   // of the expressions in data_
  std::vector<int32_t> numbers_;  // of the rules in the program
  Automaton::Program program_;
};

}  // namespace

Automaton::Program grammar_program(const std::string& source) {
  try {
    return ProgramBuilder(Json::parse(source)).take();
  } catch (const Unknown&) {
    return {};
  } catch (const std::out_of_range&) {
    return {};
  }
}

}  // namespace turbomind
