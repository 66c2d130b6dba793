#include "grammar/grammar_text.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <regex>
#include <string_view>

#include "base/json.h"

namespace turbomind {

namespace {

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;  // first and last of each

constexpr uint32_t kLast = 0x10FFFF;
constexpr size_t kMaxDigits = 9;  // of a count; xgrammar would read more as another number
constexpr size_t kMessage = 400;  // bytes of one of xgrammar's
constexpr std::string_view kSpaces = " \t\n\r\f\v";

bool is_one_of(std::string_view characters, char c) {
  return characters.find(c) != std::string_view::npos;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The character that begins at `at`, which moves behind it.
uint32_t take_character(const std::string& text, size_t& at) {
  const auto byte = static_cast<unsigned char>(text[at++]);
  if (byte < 0x80) return byte;
  uint32_t code = byte >= 0xF0 ? byte & 0x07u : byte >= 0xE0 ? byte & 0x0Fu : byte & 0x1Fu;
  for (; at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; ++at) {
    code = code << 6 | (static_cast<unsigned char>(text[at]) & 0x3Fu);
  }
  return code;
}

std::string shown(const std::string& text, size_t at, size_t end, size_t most = 32) {
  const size_t start = at;
  while (at < std::min({end, text.size(), start + most})) take_character(text, at);
  return text.substr(start, at - start);
}

locale_t unicode() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

bool is_in_word(uint32_t code) {
  if (code < 0x80) return code == '_' || is_digit(static_cast<char>(code)) || is_letter(static_cast<char>(code));
  return unicode() != nullptr && iswalnum_l(code, unicode()) != 0;
}

// Characters that differ in their case alone, each under all others.
const std::multimap<uint32_t, uint32_t>& other_cases() {
  static const std::multimap<uint32_t, uint32_t> others = [] {
    const auto folded = [](wint_t code) {
      if (unicode() == nullptr) return code < 0x80 && is_letter(static_cast<char>(code)) ? code | 0x20 : code;
      return towlower_l(towupper_l(code, unicode()), unicode());
    };
    std::map<wint_t, std::vector<uint32_t>> classes;
    for (uint32_t code = 'A'; code < 0x20000; ++code) classes[folded(code)].push_back(code);
    std::multimap<uint32_t, uint32_t> found;
    for (const auto& [_, same] : classes) {
      for (const uint32_t one : same) {
        for (const uint32_t other : same) {
          if (one != other) found.emplace(one, other);
        }
      }
    }
    return found;
  }();
  return others;
}

Ranges in_all_cases(Ranges ranges) {
  const auto& others = other_cases();
  for (size_t i = 0, count = ranges.size(); i < count; ++i) {
    const auto end = others.upper_bound(ranges[i].second);
    for (auto other = others.lower_bound(ranges[i].first); other != end; ++other) {
      ranges.emplace_back(other->second, other->second);
    }
  }
  return ranges;
}

// Disjoint, in order.
Ranges merged(Ranges ranges) {
  std::ranges::sort(ranges);
  Ranges disjoint;
  for (const auto& [first, last] : ranges) {
    if (!disjoint.empty() && first <= disjoint.back().second + 1) {
      disjoint.back().second = std::max(disjoint.back().second, last);
    } else {
      disjoint.emplace_back(first, last);
    }
  }
  return disjoint;
}

Ranges complement(const Ranges& ranges) {
  Ranges rest;
  uint32_t next = 0;
  for (const auto& [first, last] : merged(ranges)) {
    if (first > next) rest.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) rest.emplace_back(next, kLast);
  return rest;
}

// Characters of \d, \w and \s, and of their opposites; nullptr for other names.
const Ranges* class_of(char name) {
  static const std::map<char, Ranges> classes = [] {
    std::map<char, Ranges> found{{'d', {{'0', '9'}}},
                                 {'w', {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
                                 {'s', {{'\t', '\r'}, {' ', ' '}}}};
    for (const char each : {'d', 'w', 's'}) found[static_cast<char>(each - 'a' + 'A')] = complement(found[each]);
    return found;
  }();
  const auto known = classes.find(name);
  return known == classes.end() ? nullptr : &known->second;
}

// Of a class xgrammar 0.2.8 takes an escape and what may be one more hexadecimal digit for one number, and a leading ^
// for the mark of its opposite, escaped or not. A text ends at its first \0.
std::string written(Ranges ranges, bool is_negated = false) {
  const auto character = [](uint32_t code) {
    if (code < 0x80 && (is_letter(static_cast<char>(code)) || is_digit(static_cast<char>(code)))) {
      return std::string(1, static_cast<char>(code));
    }
    char escape[16];
    std::snprintf(escape, sizeof(escape), "\\u{%X}", code);
    return std::string(escape);
  };
  ranges = merged(std::move(ranges));
  std::ranges::rotate(ranges, std::ranges::find_if(ranges, [](const auto& each) { return each.first >= ' '; }));
  const uint32_t first = ranges[0].first;
  if (ranges.size() == 1 && first == ranges[0].second && !is_negated && first != 0) return character(first);
  if (first == '^' && !is_negated) {
    ranges.emplace_back(first, first);
    if (ranges[0].first++ == ranges[0].second) ranges.erase(ranges.begin());
  }
  std::string text = is_negated ? "[^" : "[";
  for (const auto& [from, to] : ranges) {
    text += character(from);
    if (to > from) text += "-" + character(to);
  }
  return text + "]";
}

// A regular expression of a grammar, from `at` up to `end`, as Python reads it, but for classes, which are of ASCII.
class Expression {
 public:
  Expression(const std::string& grammar, size_t at, size_t end, std::string flags)
      : grammar_(grammar), at_(at), begin_(at), end_(end), flags_(std::move(flags)) {}

  std::string read() {
    if (starts_with("(?")) {
      const size_t close = std::min(grammar_.find_first_not_of("imsx", at_ + 2), end_);
      if (close > at_ + 2 && close < end_ && grammar_[close] == ')') {
        flags_ += grammar_.substr(at_ + 2, close - at_ - 2);
        at_ = close + 1;
      }
    }
    if (!has('x')) {
      const size_t line = grammar_.find('\n', at_);
      if (line < end_) fail(begin_ - 1, "the regular expression is not closed on its line; only with flag x may it be");
    }
    for (skip(); at_ < end_; skip()) item();
    if (!open_.empty()) fail(open_.back(), "the ( has no )");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(size_t at, const std::string& message) const { throw grammar_error(grammar_, at, message); }
  [[noreturn]] void fail_unsupported(size_t at, const std::string& what) const { fail(at, what + " is not supported"); }

  bool has(char flag) const { return is_one_of(flags_, flag); }
  bool starts_with(std::string_view text) const {
    return at_ + text.size() <= end_ && grammar_.compare(at_, text.size(), text) == 0;
  }
  bool takes(std::string_view text) {
    if (!starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  // White space and comments, under x.
  void skip() {
    while (has('x') && at_ < end_ && (is_one_of(kSpaces, grammar_[at_]) || grammar_[at_] == '#')) {
      at_ = grammar_[at_] == '#' ? std::min(grammar_.find('\n', at_), end_) : at_ + 1;
    }
  }

  void item() {
    const size_t start = at_;
    const char c = grammar_[at_];
    const bool is_first = out_.empty() || out_.back() == '|' || out_.back() == '(';
    if (is_one_of("*+?{", c)) {
      if (is_first || is_anchor_) fail(start, std::string("nothing is repeated by ") + c);
      return count();
    }
    if (c == '^' || c == '$') return anchor(is_first);
    is_anchor_ = false;
    if (c == '(') {
      open_group();
    } else if (c == ')') {
      if (open_.empty()) fail(start, "the ) has no (");
      open_.pop_back();
      put(")");
    } else if (c == '|' || c == '.') {
      if (c == '|') put("|");
      if (c == '.') put(has('s') ? written({{0, kLast}}) : written({{'\n', '\n'}}, true));
    } else if (c == '[') {
      ++at_;
      return characters(start);
    } else if (c == '\\') {
      put_characters(escape(false));
      return;
    } else {
      const uint32_t code = take_character(grammar_, at_);
      put_characters({{code, code}});
      return;
    }
    if (c != '(') ++at_;
  }

  void put(const std::string& text) {
    out_ += text;
    is_repeated_ = false;
  }
  void put_characters(const Ranges& ranges, bool is_negated = false) {
    put(written(has('i') ? in_all_cases(ranges) : ranges, is_negated));
  }

  // The ends of an expression are the ends of its text, with flag m too.
  void anchor(bool is_first) {
    const size_t start = at_;
    const char c = grammar_[at_++];
    skip();
    const bool is_at_end = at_ == end_ || grammar_[at_] == '|';
    if (!open_.empty() || !(c == '^' ? is_first : is_at_end)) {
      fail_unsupported(start, std::string(1, c) + " at a place other than the " + (c == '^' ? "beginning" : "end") +
                                  " of a regular expression" + (has('m') ? " (flag m)" : ""));
    }
    is_anchor_ = true;
  }

  void open_group() {
    const size_t start = at_;
    open_.push_back(start);
    ++at_;
    put("(");
    if (!takes("?") || takes(":")) return;
    if (starts_with("=") || starts_with("!")) fail_unsupported(start, "looking ahead, (?" + grammar_.substr(at_, 1));
    if (starts_with("<=") || starts_with("<!")) fail_unsupported(start, "looking behind, (?" + grammar_.substr(at_, 2));
    const size_t close = grammar_.find('>', at_);
    if ((takes("P<") || takes("<")) && close < end_) {
      at_ = close + 1;
      return;
    }
    fail_unsupported(start, "the group " + shown(grammar_, start, end_));
  }

  void count() {
    const size_t start = at_;
    if (is_repeated_) fail_unsupported(start, "repeating what is repeated already");
    if (grammar_[at_] == '{') {
      const size_t close = std::min(grammar_.find('}', at_), end_);
      static const std::regex pattern("\\{(\\d{1,9})(,(\\d{0,9}))?\\}");
      std::smatch found;
      const std::string text = grammar_.substr(at_, close + 1 - at_);
      if (close == end_ || !std::regex_match(text, found, pattern)) {
        fail(start, "a count is {n}, {n,} or {n,m}, of at most 9 digits each, got " + shown(grammar_, at_, end_));
      }
      if (found[3].length() > 0 && std::stol(found[3]) < std::stol(found[1])) fail(start, "the count runs backwards");
      at_ = close + 1;
      out_ += text;
    } else {
      out_ += grammar_[at_++];
    }
    takes("?");  // which text is tried first changes nothing
    is_repeated_ = true;
  }

  uint32_t hex(size_t start, size_t least, size_t most) {
    size_t digits = 0;
    while (digits < most && at_ + digits < end_ && std::isxdigit(static_cast<unsigned char>(grammar_[at_ + digits]))) {
      ++digits;
    }
    if (digits < least) fail(start, "an escape has too few hexadecimal digits");
    const auto code = static_cast<uint32_t>(std::stoul(grammar_.substr(at_, digits), nullptr, 16));
    at_ += digits;
    if (code > kLast || (code >= 0xD800 && code <= 0xDFFF)) fail(start, "an escape names no character");
    return code;
  }

  Ranges escape(bool is_in_class) {
    const size_t start = at_++;
    if (at_ >= end_) fail(start, "a backslash is the last character");
    const char c = grammar_[at_];
    const auto one = [](uint32_t code) { return Ranges{{code, code}}; };
    if (static_cast<unsigned char>(c) >= 0x80) return one(take_character(grammar_, at_));
    ++at_;
    if (const Ranges* known = class_of(c)) return *known;
    if (is_one_of("xuU", c)) {
      if (c != 'U' && takes("{")) {
        const uint32_t code = hex(start, 1, 6);
        if (!takes("}")) fail(start, "an escape has no }");
        return one(code);
      }
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      return one(hex(start, digits, digits));
    }
    static const std::map<char, char> controls{{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'f', '\f'},
                                               {'v', '\v'}, {'a', '\a'}, {'0', '\0'}};
    const auto control = controls.find(c);
    const bool is_octal = c == '0' && at_ < end_ && is_digit(grammar_[at_]);
    if (control != controls.end() && !is_octal) return one(static_cast<uint32_t>(control->second));
    if (c == 'b' && is_in_class) return one('\b');
    if (is_digit(c))
      fail_unsupported(start, std::string(c == '0' ? "an octal number, \\" : "a reference to a group, \\") + c);
    if (is_letter(c)) fail_unsupported(start, std::string("the escape \\") + c);
    return one(static_cast<uint32_t>(c));
  }

  Ranges class_member() {
    for (const char* operation : {"[:", "&&", "--", "~~", "||"}) {
      if (starts_with(operation)) fail_unsupported(at_, std::string(operation) + " in a class of characters");
    }
    if (grammar_[at_] == '\\') return escape(true);
    const uint32_t code = take_character(grammar_, at_);
    return {{code, code}};
  }

  void characters(size_t start) {
    const bool is_negated = takes("^");
    Ranges members;
    if (starts_with("]")) fail_unsupported(at_, "] as the first of a class of characters (write \\])");
    while (!takes("]")) {
      if (at_ >= end_) fail(start, "the [ has no ]");
      const size_t member = at_;
      Ranges first = class_member();
      if (at_ + 1 < end_ && grammar_[at_] == '-' && grammar_[at_ + 1] != ']') {
        ++at_;
        const Ranges last = class_member();
        const bool are_characters = first.size() == 1 && last.size() == 1 && first[0].first == first[0].second &&
                                    last[0].first == last[0].second;
        if (!are_characters || last[0].first < first[0].first) fail(member, "a range is of two characters, in order");
        first = {{first[0].first, last[0].first}};
      }
      members.insert(members.end(), first.begin(), first.end());
    }
    put_characters(members, is_negated);
  }

  const std::string& grammar_;
  size_t at_;
  const size_t begin_;
  const size_t end_;
  std::string flags_;
  std::string out_;
  std::vector<size_t> open_;  // where groups begin
  bool is_repeated_ = false;
  bool is_anchor_ = false;  // the item before
};

// Goes through a grammar and writes it anew, with parts of it replaced.
class Rewriter {
 public:
  explicit Rewriter(const std::string& grammar) : grammar_(grammar) {}

  GrammarText lark() {
    while (at_ < grammar_.size()) {
      const char c = grammar_[at_];
      if (c == '#' || starts_with("//")) {
        keep(grammar_.find('\n', at_));
      } else if (c == '"') {
        lark_string();
      } else if (c == '/') {
        expression();
      } else if (starts_with("%json") || starts_with("%regex")) {
        value();
      } else if (c == '<' && !starts_with("<[")) {
        throw grammar_error(grammar_, at_, "special tokens by their names are not supported; write <[number]>");
      } else {
        keep_checked();
      }
    }
    return std::move(result_);
  }

  GrammarText ebnf() {
    while (at_ < grammar_.size()) {
      const char c = grammar_[at_];
      if (c == '#') {
        keep(grammar_.find('\n', at_));
      } else if (c == '"' || c == '[') {
        const size_t end = end_of_text(c == '"' ? '"' : ']');
        require_characters(end);
        keep(end);
      } else if (starts_with("(=")) {
        throw grammar_error(grammar_, at_, "looking ahead, (=, is not supported");
      } else {
        keep_checked();
      }
    }
    return std::move(result_);
  }

 private:
  bool starts_with(std::string_view text) const { return grammar_.compare(at_, text.size(), text) == 0; }

  size_t end_of_word(size_t at) const {
    const auto is_word = [](char c) { return is_letter(c) || is_digit(c) || c == '_'; };
    return static_cast<size_t>(
        std::find_if_not(grammar_.begin() + static_cast<ptrdiff_t>(at), grammar_.end(), is_word) - grammar_.begin());
  }

  void keep(size_t end) {
    end = std::min(end, grammar_.size());
    result_.text.append(grammar_, at_, end - at_);
    at_ = end;
  }

  void replace(size_t end, const std::string& text) {
    result_.places.emplace_back(result_.text.size(), at_);
    result_.text += text;
    result_.places.emplace_back(result_.text.size(), end);
    at_ = end;
  }

  // A character, or a word or number.
  void keep_checked() {
    const size_t end = end_of_word(at_);
    if (is_digit(grammar_[at_]) && end - at_ > kMaxDigits) {
      throw grammar_error(grammar_, at_, "numbers have at most 9 digits, got " + shown(grammar_, at_, end));
    }
    const size_t next = grammar_.find_first_not_of(kSpaces, end);
    if (starts_with("temperature") && end == at_ + 11 && next != std::string::npos && grammar_[next] == '=') {
      throw grammar_error(grammar_, at_, "a temperature of a rule is not supported");
    }
    keep(std::max(end, at_ + 1));
  }

  // Behind the mark that closes what begins here.
  size_t end_of_text(char mark) const {
    for (size_t i = at_ + 1; i < grammar_.size() && grammar_[i] != '\n'; ++i) {
      if (grammar_[i] == mark) return i + 1;
      if (grammar_[i] == '\\') ++i;
    }
    throw grammar_error(grammar_, at_, std::string("the ") + grammar_[at_] + " has no " + mark + " on its line");
  }

  // xgrammar would write half of a surrogate pair, which is no text.
  void require_characters(size_t end) const {
    for (size_t i = at_; i < end; ++i) {
      if (grammar_[i] != '\\') continue;
      const size_t start = i++;
      const size_t digits = grammar_[i] == 'u' ? 4 : grammar_[i] == 'U' ? 8 : 0;
      const unsigned long code = std::strtoul(grammar_.substr(i + 1, digits).c_str(), nullptr, 16);
      if (code >= 0xD800 && code <= 0xDFFF) throw grammar_error(grammar_, start, "the escape names no character");
    }
  }

  void lark_string() {
    const size_t end = end_of_text('"');
    std::string text;
    try {
      text = Json::parse(grammar_.substr(at_, end - at_)).as_string();
    } catch (const Error&) {
      throw grammar_error(grammar_, at_, "the escapes of a string are those of JSON, got " + shown(grammar_, at_, end));
    }
    if (end >= grammar_.size() || grammar_[end] != 'i' || end_of_word(end) != end + 1) return keep(end);
    std::string pattern;
    for (size_t i = 0; i < text.size();) {
      const uint32_t code = take_character(text, i);
      pattern += written(in_all_cases({{code, code}}));
    }
    replace(end + 1, pattern.empty() ? "\"\"" : "/" + pattern + "/");
  }

  void expression() {
    size_t end = at_ + 1;
    while (end < grammar_.size() && grammar_[end] != '/') end += grammar_[end] == '\\' ? 2 : 1;
    if (end >= grammar_.size()) throw grammar_error(grammar_, at_, "the regular expression is not closed");
    const size_t after = end_of_word(end + 1);
    const std::string flags = grammar_.substr(end + 1, after - end - 1);
    if (const size_t wrong = flags.find_first_not_of("imsux"); wrong != std::string::npos) {
      throw grammar_error(grammar_, end + 1 + wrong,
                          std::string("the flag ") + flags[wrong] + " of a regular expression is not supported");
    }
    const std::string pattern = Expression(grammar_, at_ + 1, end, flags).read();
    replace(after, pattern.empty() ? "\"\"" : "/" + pattern + "/");
  }

  // After %json and %regex.
  void value() {
    const bool is_regex = starts_with("%regex");
    keep(grammar_.find_first_not_of(kSpaces, end_of_word(at_ + 1)));
    if (at_ == grammar_.size() || grammar_[at_] != '{') return;
    const size_t end = end_of_object();
    Json value;
    try {
      value = Json::parse(grammar_.substr(at_, end - at_));
    } catch (const Error& error) {
      throw grammar_error(grammar_, at_, error.what());
    }
    const Json* words = is_regex ? value.find("substring_words") : nullptr;
    if (is_regex && value.as_object().size() != 1) {
      throw grammar_error(grammar_, at_, "%regex takes one of substring_chars, substring_words and substring_chunks");
    }
    if (words == nullptr || !words->is_string()) return keep(end);
    replace(end, "{\"substring_chunks\":" + chunks(words->as_string()) + "}");
  }

  size_t end_of_object() const {
    int depth = 0;
    bool is_in_string = false;
    for (size_t i = at_; i < grammar_.size(); ++i) {
      const char c = grammar_[i];
      if (c == '\\' && is_in_string) ++i;
      if (c == '"') is_in_string = !is_in_string;
      if (is_in_string) continue;
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (depth == 0) return i + 1;
    }
    throw grammar_error(grammar_, at_, "the { has no }");
  }

  // Words, and the characters between them, as JSON.
  static std::string chunks(const std::string& text) {
    std::string list;
    bool was_in_word = false;
    for (size_t i = 0; i < text.size();) {
      const size_t start = i;
      const bool is_now = is_in_word(take_character(text, i));
      const std::string character = quoted(text.substr(start, i - start));
      if (is_now && was_in_word) {
        list.pop_back();
        list += character.substr(1);
      } else {
        list += (list.empty() ? "" : ",") + character;
      }
      was_in_word = is_now;
    }
    return "[" + list + "]";
  }

  const std::string& grammar_;
  size_t at_ = 0;
  GrammarText result_;
};
}  // namespace

GrammarText lark_text(const std::string& grammar) {
  return Rewriter(grammar).lark();
}

GrammarText ebnf_text(const std::string& grammar) {
  return Rewriter(grammar).ebnf();
}

Error grammar_error(const std::string& grammar, size_t at, const std::string& message) {
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i < std::min(at, grammar.size());) {
    const bool is_end = take_character(grammar, i) == '\n';
    line += is_end ? 1 : 0;
    column = is_end ? 1 : column + 1;
  }
  return invalid_argument("response_format: line " + std::to_string(line) + ", column " + std::to_string(column) +
                          ": " + message);
}

Error grammar_error(const std::string& grammar, const GrammarText& read, const std::string& message) {
  static const std::regex place("line (\\d+), column (\\d+): ");
  // Of messages within messages: "[time] file:line: ", and the place in what another reader was given.
  static const std::regex noise(
      "\\[[0-9:]{1,9}\\] [^ ]{1,200}\\.cc:\\d+: |(Regex|EBNF) [a-z]+ error at (line \\d+, column|position) \\d+: ");
  const std::string text = shown(message, 0, std::min(message.find('\n'), message.size()), kMessage);
  std::smatch found;
  if (!std::regex_search(text, found, place)) return grammar_error(grammar, 0, std::regex_replace(text, noise, ""));
  size_t at = 0;
  for (long line = std::stol(found[1]); line > 1; --line) at = read.text.find('\n', at) + 1;
  at += static_cast<size_t>(std::stol(found[2])) - 1;
  auto part = std::ranges::upper_bound(read.places, at, {}, &std::pair<size_t, size_t>::first);
  const size_t end = part == read.places.end() ? grammar.size() : part->second;
  --part;
  at = std::min(part->second + (at - part->first), end);
  return grammar_error(grammar, at, std::regex_replace(found.suffix().str(), noise, ""));
}

}  // namespace turbomind
