// A test is a function registered by TEST(name); CHECK fails it with file and line.
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace turbomind::testing {

struct TestCase {
  const char* name;
  void (*run)();
};

inline std::vector<TestCase>& test_cases() {
  static std::vector<TestCase> cases;
  return cases;
}

struct Registration {
  Registration(const char* name, void (*run)()) { test_cases().push_back({name, run}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class A, class B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << file << ":" << line << ": " << text << ": " << a << " != " << b;
  throw Failure(message.str());
}

}  // namespace turbomind::testing

#define TEST(name)                                                                   \
  static void name();                                                                \
  static const ::turbomind::testing::Registration registration_##name{#name, &name}; \
  static void name()

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      throw ::turbomind::testing::Failure(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + #condition); \
    }                                                                                                                  \
  } while (false)

#define CHECK_EQUAL(a, b) ::turbomind::testing::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
