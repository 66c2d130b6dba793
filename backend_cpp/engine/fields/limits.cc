#include "engine/fields/limits.h"

#include <cmath>
#include <sstream>

#include "base/error.h"

namespace turbomind {

namespace {

std::string range(const Limits& limits) {
  std::ostringstream text;
  if (std::isfinite(limits.low)) text << (limits.excludes_low ? "> " : ">= ") << limits.low;
  if (std::isfinite(limits.high)) text << (std::isfinite(limits.low) ? " and " : "") << "<= " << limits.high;
  return text.str();
}

bool is_choice(std::string_view choices, std::string_view value) {
  while (!choices.empty()) {
    const size_t end = choices.find(", ");
    if (choices.substr(0, end) == value) return true;
    if (end == std::string_view::npos) return false;
    choices.remove_prefix(end + 2);
  }
  return false;
}

[[noreturn]] void reject(const char* name, const std::string& expected, const std::string& given) {
  throw invalid_argument(std::string(name) + " must be " + expected + ", got " + given);
}

std::string shown(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void check_count(const char* name, size_t count, const Limits& limits) {
  if (count <= limits.max_items) return;
  throw invalid_argument(std::string(name) + " must have at most " + std::to_string(limits.max_items) +
                         " entries, got " + std::to_string(count));
}

}  // namespace

void check_limits(const char* name, double value, const Limits& limits) {
  if (value == limits.none) return;  // never with NaN
  if (!limits.choices.empty()) {
    if (!is_choice(limits.choices, shown(value))) {
      reject(name, "one of " + std::string(limits.choices), shown(value));
    }
    return;
  }
  const bool is_over = limits.excludes_low ? value > limits.low : value >= limits.low;
  if (!std::isfinite(value) || !is_over || value > limits.high) {
    reject(name, range(limits).empty() ? "a finite number" : range(limits), shown(value));
  }
}

void check_limits(const char* name, const std::string& text, const Limits& limits) {
  if (text.size() > limits.max_bytes) {
    throw invalid_argument(std::string(name) + " must be at most " + std::to_string(limits.max_bytes) +
                           " bytes long, got " + std::to_string(text.size()));
  }
  if (limits.choices.empty() || text.empty() || is_choice(limits.choices, text)) return;
  reject(name, "one of " + std::string(limits.choices), text);
}

void check_limits(const char* name, const std::vector<std::string>& texts, const Limits& limits) {
  check_count(name, texts.size(), limits);
  for (const std::string& text : texts) {
    if (!text.empty() && text.size() <= limits.max_bytes) continue;
    throw invalid_argument("each of " + std::string(name) + " must be 1 to " + std::to_string(limits.max_bytes) +
                           " bytes long, got " + std::to_string(text.size()));
  }
}

void check_limits(const char* name, const std::vector<int32_t>& tokens, const Limits& limits) {
  check_count(name, tokens.size(), limits);
}

void check_limits(const char* name, const std::vector<std::pair<int32_t, float>>& biases, const Limits& limits) {
  check_count(name, biases.size(), limits);
  for (const auto& [token, bias] : biases) {
    if (std::isnan(bias)) reject(("each value of " + std::string(name)).c_str(), "a number", "NaN");
  }
}

}  // namespace turbomind
