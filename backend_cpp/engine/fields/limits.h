// Range of a field of a request, or of a setting of the engine, and its check.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace turbomind {

struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  bool excludes_low = false;
  double high = std::numeric_limits<double>::infinity();
  double none = std::numeric_limits<double>::quiet_NaN();  // allowed besides: it stands for nothing given
  size_t max_items = ~size_t{0};                           // of a list
  size_t max_bytes = ~size_t{0};                           // of each string
  std::string_view choices = {};                           // the texts allowed, with ", " between; empty: any
};

// Each throws Error(kInvalidArgument) naming the field, what was expected and what was given.
void check_limits(const char* name, double value, const Limits& limits);
void check_limits(const char* name, const std::string& text, const Limits& limits);
void check_limits(const char* name, const std::vector<std::string>& texts, const Limits& limits);
void check_limits(const char* name, const std::vector<int32_t>& tokens, const Limits& limits);
void check_limits(const char* name, const std::vector<std::pair<int32_t, float>>& biases, const Limits& limits);

inline void check_limits(const char*, bool, const Limits&) {}
inline void check_limits(const char*, const Json&, const Limits&) {}
inline void check_limits(const char*, const std::map<std::string, std::string>&, const Limits&) {}
// Every number of this many bits will do.
inline void check_limits(const char*, const std::optional<uint64_t>&, const Limits&) {}
inline void check_limits(const char* name, int value, const Limits& limits) {
  check_limits(name, static_cast<double>(value), limits);
}
inline void check_limits(const char* name, float value, const Limits& limits) {
  check_limits(name, static_cast<double>(value), limits);
}
inline void check_limits(const char* name, const std::optional<int>& value, const Limits& limits) {
  if (value) check_limits(name, *value, limits);
}

}  // namespace turbomind
