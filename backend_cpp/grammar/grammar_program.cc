// The library turbomind_grammar: makes a grammar that xgrammar has read the program that the engine follows
// (engine/grammar/program.h), for lmdeploy/grammars/__main__.py.
#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/grammar/program.h"
#include "grammar/prepare_program.h"

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
  kTagDispatch,    // free text: what begins a rule and the rule, pairs; whether text follows it; what may not come
  kRepetition,     // rule, least, most
  kToken,          // any of them
  kTokenBut,       // any but them
  kTokenDispatch,  // is not supported
  kRegex,          // a grammar of its own, among `regexes` of the grammar
  kSubstring,      // of chunks: how many bytes, and those
};

constexpr int kMaxDepth = 64;
constexpr int kMaxPrefix = 1000;       // that alternatives have in common and is read together
constexpr size_t kMaxStates = 20'000;  // of texts that begin a tag, of 1 KiB each

// A construct that the engine cannot follow.
struct Unknown : std::exception {
  explicit Unknown(std::string why = "it has what is not known here") : why(std::move(why)) {}
  std::string why;
};

class ProgramBuilder {
 public:
  explicit ProgramBuilder(const Json& grammar) {
    end_ = add({GrammarProgram::kReturn, 0, 0, 0, 0});
    add_rules(grammar);
  }

  // Null: no text fits the grammar.
  std::optional<GrammarProgram> take() {
    return prepare(program_, names_) ? std::make_optional(std::move(program_)) : std::nullopt;
  }

 private:
  // Expressions of one grammar.
  struct Expressions {
    std::vector<int32_t> data;
    std::vector<int32_t> offsets;                          // in `data`
    std::vector<int32_t> numbers;                          // of the rules in the program
    std::map<int32_t, const Json*> regexes;                // grammars of expressions
    std::map<int32_t, std::pair<int32_t, int32_t>> stops;  // rules that end without the second of these, where they
                                                           // have no room for it
  };

  // An expression.
  struct Part {
    int32_t type;
    int32_t count;
    const int32_t* values;
  };

  static Unknown too_deep() { return Unknown("it is nested too deep"); }

  static int32_t to_int(const Json& number) {
    const int64_t value = number.as_int();
    if (value != static_cast<int32_t>(value)) throw Unknown("a number in it is too large");
    return static_cast<int32_t>(value);
  }

  static void copy(const Json& numbers, std::vector<int32_t>& to) {
    for (const Json& number : numbers.as_array()) to.push_back(to_int(number));
  }

  // Adds a grammar's rules, the root first. Returns the root's number.
  int32_t add_rules(const Json& grammar) {
    Expressions outer = std::exchange(expressions_, {});
    copy(grammar.at("grammar_expr_data"), expressions_.data);
    copy(grammar.at("grammar_expr_indptr"), expressions_.offsets);
    const auto root = static_cast<size_t>(grammar.at("root_rule_id").as_int());
    const Json::Array& rules = grammar.at("rules").as_array();
    if (root >= rules.size()) throw Unknown();
    for (const Json& info : grammar.at("suffix_stop_infos").as_array()) {
      const int32_t rule = to_int(info.at(0));
      if (info.at(2).as_int() == 0 || to_int(rules.at(static_cast<size_t>(rule)).at(4)) < 0) continue;
      expressions_.stops[rule] = {to_int(info.at(3)), to_int(info.at(4))};
    }
    if (const Json* regexes = grammar.find("regexes")) {
      for (const Json& regex : regexes->as_array()) expressions_.regexes[to_int(regex.at(0))] = &regex.at(1);
    }
    const auto first = static_cast<int32_t>(program_.starts.size());
    expressions_.numbers.resize(rules.size());
    std::iota(expressions_.numbers.begin(), expressions_.numbers.end(), first);
    std::swap(expressions_.numbers[0], expressions_.numbers[root]);
    program_.starts.resize(program_.starts.size() + rules.size());
    names_.resize(program_.starts.size());
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      const int32_t start = build_rule(static_cast<int32_t>(rule), rules[rule].as_array());
      const auto number = static_cast<size_t>(number_of(static_cast<int32_t>(rule)));
      program_.starts[number] = start;
      names_[number] = rules[rule].as_array().at(0).as_string();
    }
    expressions_ = std::move(outer);
    return first;
  }

  // `fields`: name, body, what follows it, whether that is all, most tokens, most characters, what the text is called,
  // whether it ends as soon as it can.
  int32_t build_rule(int32_t rule, const Json::Array& fields) {
    int32_t start = build_body(rule, to_int(fields.at(1)));
    const auto limit = [&](int32_t max, GrammarProgram::Limit kind) {
      program_.starts.push_back(start);
      names_.push_back(fields.at(0).as_string());
      start = add({GrammarProgram::kRegion, static_cast<int32_t>(program_.starts.size()) - 1, max, kind, end_});
    };
    if (fields.at(7).as_bool()) limit(0, GrammarProgram::kShortest);
    if (to_int(fields.at(5)) >= 0) throw Unknown("max_chars is not supported");
    if (const int32_t max = to_int(fields.at(4)); max >= 0) limit(max, GrammarProgram::kMaxTokens);
    return start;
  }

  int32_t build_body(int32_t rule, int32_t body) {
    const auto stop = expressions_.stops.find(rule);
    if (stop == expressions_.stops.end()) return build_options(rule, body);
    const auto [text, end] = stop->second;
    const int32_t when_full = add({GrammarProgram::kWhenFull, 0, 0, 0, 0});
    const int32_t marked = add({GrammarProgram::kCall, number_of(end), 0, 0, end_});
    return add({GrammarProgram::kCall, number_of(text), 0, 0, split({when_full, marked})});
  }

  // Options that begin with their rule itself are read as what follows it in them, after the others, any number of
  // times.
  int32_t build_options(int32_t rule, int32_t body) {
    const Part options = expression(body);
    std::vector<int32_t> begins, ways{end_};
    std::vector<Part> continued;
    for (int32_t i = 0; options.type == kChoices && i < options.count; ++i) {
      const Part option = expression(options.values[i]);
      const Part first = option.type == kSequence && option.count > 0 ? expression(option.values[0]) : option;
      if (first.type == kRule && first.count == 1 && first.values[0] == rule) {
        continued.push_back(option);
      } else {
        begins.push_back(options.values[i]);
      }
    }
    if (continued.empty()) return build(body, end_, 0);
    const int32_t loop = split({});
    for (int32_t& option : begins) option = build(option, loop, 1);
    for (const Part& option : continued) {
      if (option.count > 1) ways.push_back(sequence(option.values + 1, option.count - 1, loop, 1));
    }
    program_.nodes[static_cast<size_t>(loop)] = program_.nodes[static_cast<size_t>(split(ways))];
    return either(begins, 0);
  }

  int32_t add(const GrammarProgram::Node& node) {
    program_.nodes.push_back(node);
    return static_cast<int32_t>(program_.nodes.size()) - 1;
  }

  int32_t number_of(int32_t rule) const { return expressions_.numbers.at(static_cast<size_t>(rule)); }

  int32_t split(const std::vector<int32_t>& nodes) {
    return add({GrammarProgram::kSplit, list(nodes), static_cast<int32_t>(nodes.size()), 0, 0});
  }

  // One of several nodes. What begins with the same byte is read together, so that places of long lists of texts are
  // small.
  int32_t either(const std::vector<int32_t>& nodes, int depth) {
    std::map<int32_t, std::set<int32_t>> after;  // a byte
    std::vector<int32_t> ways;
    for (const int32_t number : nodes) {
      const GrammarProgram::Node& node = program_.nodes[static_cast<size_t>(number)];
      if (node.kind == GrammarProgram::kByte && depth < kMaxPrefix) {
        after[node.a].insert(node.next);
      } else {
        ways.push_back(number);
      }
    }
    for (const auto& [value, next] : after) {
      const int32_t then = next.size() == 1 ? *next.begin() : either({next.begin(), next.end()}, depth + 1);
      ways.push_back(add({GrammarProgram::kByte, value, 0, 0, then}));
    }
    return ways.size() == 1 ? ways[0] : split(ways);
  }

  int32_t list(const std::vector<int32_t>& values) {
    const auto first = static_cast<int32_t>(program_.lists.size());
    program_.lists.insert(program_.lists.end(), values.begin(), values.end());
    return first;
  }

  int32_t characters(const int32_t* values, int32_t count, int32_t next) {
    const bool is_negated = values[0] != 0;
    return add({GrammarProgram::kClass, list({values + 1, values + count}), count / 2, is_negated ? 1 : 0, next});
  }

  int32_t byte(int32_t value, int32_t next) { return add({GrammarProgram::kByte, value, 0, 0, next}); }

  int32_t tokens(const int32_t* values, int32_t count, bool is_all_but, int32_t next) {
    return add({GrammarProgram::kToken, list({values, values + count}), count, is_all_but ? 1 : 0, next});
  }

  // The automaton of Aho and Corasick: finds texts in a text that comes byte by byte.
  struct TextState {
    std::array<int32_t, 256> next{};  // 0: the first state, or none yet
    int32_t found = kNothing;         // the rule of the longest text that ends here
  };
  static constexpr int32_t kNothing = -1;
  static constexpr int32_t kNever = -2;  // what must not come, which goes before any rule

  void add_text(std::vector<TextState>& states, int32_t text, int32_t rule) const {
    size_t state = 0;
    for (const char c : bytes_of(text)) {
      const auto byte = static_cast<uint8_t>(c);
      if (states[state].next[byte] == 0) {
        states[state].next[byte] = static_cast<int32_t>(states.size());
        states.emplace_back();
      }
      state = static_cast<size_t>(states[state].next[byte]);
    }
    int32_t& found = states[state].found;
    const bool is_other = rule != kNever && found != kNothing && found != rule;
    if (states.size() > kMaxStates || (is_other && found != kNever)) {
      throw Unknown("it has too many texts that begin a tag, or one that begins two");
    }
    if (!is_other) found = rule;
  }

  // In the order of their lengths: what a state does not continue is continued by the longest end of its text that is a
  // state too.
  static void finish(std::vector<TextState>& states) {
    std::vector<std::pair<int32_t, int32_t>> todo;  // a state, and the one of that end
    for (const int32_t state : states[0].next) {
      if (state != 0) todo.emplace_back(state, 0);
    }
    for (size_t i = 0; i < todo.size(); ++i) {
      TextState& state = states[static_cast<size_t>(todo[i].first)];
      const TextState& shorter = states[static_cast<size_t>(todo[i].second)];
      if (state.found == kNothing || shorter.found == kNever) state.found = shorter.found;
      for (size_t byte = 0; byte < state.next.size(); ++byte) {
        if (state.next[byte] != 0) {
          todo.emplace_back(state.next[byte], shorter.next[byte]);
        } else {
          state.next[byte] = shorter.next[byte];
        }
      }
    }
  }

  // Free text up to what begins a rule.
  int32_t tag_dispatch(const int32_t* values, int32_t count, int32_t next) {
    if (count < 2 || count % 2 != 0) throw Unknown();
    std::vector<TextState> states(1);
    for (int32_t i = 0; i + 2 < count; i += 2) add_text(states, values[i], values[i + 1]);
    const Part left_out = expression(values[count - 1]);
    for (int32_t i = 0; i < left_out.count; ++i) add_text(states, left_out.values[i], kNever);
    finish(states);
    std::vector<int32_t> nodes(states.size());
    for (int32_t& node : nodes) node = split({});
    const int32_t after_rule = values[count - 2] != 0 ? nodes[0] : next;
    for (size_t state = 0; state < nodes.size(); ++state) {
      if (states[state].found != kNothing) continue;
      std::map<int32_t, std::vector<int32_t>> pairs;  // of bytes, first and last, by where they lead
      for (int32_t byte = 0; byte < 256; ++byte) {
        std::vector<int32_t>& ranges = pairs[states[state].next[static_cast<size_t>(byte)]];
        if (ranges.empty() || ranges.back() != byte - 1) ranges.insert(ranges.end(), {byte, byte});
        ranges.back() = byte;
      }
      std::vector<int32_t> ways{next};
      for (const auto& [target, ranges] : pairs) {
        const int32_t rule = states[static_cast<size_t>(target)].found;
        if (rule == kNever) continue;
        const int32_t then = rule == kNothing ? nodes[static_cast<size_t>(target)]
                                              : add({GrammarProgram::kCall, number_of(rule), 0, 0, after_rule});
        ways.push_back(add({GrammarProgram::kBytes, list(ranges), static_cast<int32_t>(ranges.size()) / 2, 0, then}));
      }
      program_.nodes[static_cast<size_t>(nodes[state])] = program_.nodes[static_cast<size_t>(split(ways))];
    }
    return nodes[0];
  }

  std::string bytes_of(int32_t number) const {
    const Part text = expression(number);
    if (text.type != kBytes || text.count == 0) throw Unknown();
    std::string bytes;
    for (int32_t i = 0; i < text.count; ++i) bytes.push_back(static_cast<char>(text.values[i]));
    return bytes;
  }

  // Any number of chunks in a row, from any of them on: the states of their suffix automaton (Blumer et al. 1985),
  // those with the longest texts first.
  int32_t substring(const int32_t* values, int32_t count, int32_t next) {
    struct State {
      int32_t length = 0;
      int32_t link = -1;
      std::map<std::string, int32_t> ways;
    };
    std::vector<State> states(1);
    const auto state = [&](int32_t number) -> State& { return states[static_cast<size_t>(number)]; };
    int32_t last = 0;
    for (int32_t at = 0; at < count; at += values[at] + 1) {
      if (values[at] < 0 || values[at] >= count - at) throw Unknown();
      const std::string chunk(values + at + 1, values + at + 1 + values[at]);
      if (chunk.empty()) continue;
      const auto added = static_cast<int32_t>(states.size());
      states.push_back({state(last).length + 1, 0, {}});
      int32_t from = std::exchange(last, added);
      for (; from >= 0 && state(from).ways.emplace(chunk, added).second; from = state(from).link) {
      }
      if (from < 0) continue;
      const int32_t target = state(from).ways[chunk];
      if (state(from).length + 1 == state(target).length) {
        state(added).link = target;
        continue;
      }
      const auto copied = static_cast<int32_t>(states.size());
      states.push_back({state(from).length + 1, state(target).link, state(target).ways});
      state(added).link = state(target).link = copied;
      for (; from >= 0 && state(from).ways[chunk] == target; from = state(from).link) state(from).ways[chunk] = copied;
    }
    std::vector<int32_t> order(states.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater(), [&](int32_t number) { return state(number).length; });
    std::vector<int32_t> nodes(states.size());
    for (const int32_t number : order) {
      std::vector<int32_t> ways{next};
      for (const auto& [chunk, target] : state(number).ways) {
        int32_t node = nodes[static_cast<size_t>(target)];
        for (size_t i = chunk.size(); i-- > 0;) node = byte(static_cast<uint8_t>(chunk[i]), node);
        ways.push_back(node);
      }
      nodes[static_cast<size_t>(number)] = either(ways, 0);
      if (program_.nodes.size() > GrammarProgram::kMaxNodes) throw Unknown("it is too large; make it smaller");
    }
    return nodes[0];
  }

  Part expression(int32_t number) const {
    const auto offset = static_cast<size_t>(expressions_.offsets.at(static_cast<size_t>(number)));
    const int32_t count = expressions_.data.at(offset + 1);
    if (count < 0 || offset + 2 + static_cast<size_t>(count) > expressions_.data.size()) throw Unknown();
    return {expressions_.data[offset], count, expressions_.data.data() + offset + 2};
  }

  int32_t sequence(const int32_t* values, int32_t count, int32_t next, int depth) {
    for (int32_t i = count; i-- > 0;) next = build(values[i], next, depth + 1);
    return next;
  }

  // The node that reads an expression and continues at `next`.
  int32_t build(int32_t number, int32_t next, int depth) {
    if (depth > kMaxDepth) throw too_deep();
    if (program_.nodes.size() > GrammarProgram::kMaxNodes) throw Unknown("it is too large; make it smaller");
    const auto [type, count, values] = expression(number);
    const bool is_class = type == kCharacters || type == kCharactersStar;
    if ((is_class && count % 2 == 0) || (type == kRule && count != 1) || (type == kRepetition && count != 3)) {
      throw Unknown();
    }
    switch (type) {
      case kBytes:
        for (int32_t i = count; i-- > 0;) next = byte(values[i] & 0xFF, next);
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
        return add({GrammarProgram::kCall, number_of(values[0]), 0, 0, next});
      case kSequence:
        return sequence(values, count, next, depth);
      case kChoices: {
        std::vector<int32_t> nodes;
        for (int32_t i = 0; i < count; ++i) nodes.push_back(build(values[i], next, depth + 1));
        return either(nodes, 0);
      }
      case kTagDispatch:
        return tag_dispatch(values, count, next);
      case kRepetition:
        return add({GrammarProgram::kRepeat, number_of(values[0]), values[1], values[2], next});
      case kToken:
      case kTokenBut:
        return tokens(values, count, type == kTokenBut, next);
      case kRegex:
        return add({GrammarProgram::kCall, add_rules(*expressions_.regexes.at(number)), 0, 0, next});
      case kSubstring:
        return substring(values, count, next);
      default:
        throw Unknown();
    }
  }

  Expressions expressions_;  // of the grammar whose rules are added
  int32_t end_ = 0;
  GrammarProgram program_;
  std::vector<std::string> names_;  // of its rules
};

}  // namespace

}  // namespace turbomind

// `source`: the JSON that xgrammar writes a grammar as, before it optimizes it. Returns a type of frame
// (process_compiler.cc); of M there are no bytes. `bytes`: the program, or the reason why there is none; they live
// until the next call.
extern "C" __attribute__((visibility("default"))) int turbomind_grammar_program(const char* source, size_t size,
                                                                                const char** bytes, size_t* length) {
  using namespace turbomind;
  static std::string result;
  int type = 'R';
  try {
    auto program = ProgramBuilder(Json::parse({source, size})).take();
    type = program ? 'P' : 'R';
    result = program ? program->bytes() : "no text fits it";
  } catch (const std::bad_alloc&) {
    return 'M';
  } catch (const Unknown& unknown) {
    result = unknown.why;
  } catch (const std::out_of_range&) {
    result = Unknown().why;
  } catch (const std::exception& error) {
    result = error.what();
  }
  *bytes = result.data();
  *length = result.size();
  return type;
}
