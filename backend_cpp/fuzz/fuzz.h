// FUZZ_TARGET(name) { ... } is a promise about any `input` (std::string_view). With TURBOMIND_FUZZ libFuzzer looks for
// inputs that break it (`make fuzz`); in the tests it is tried on those kept in fuzz/corpus/<name>.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

#ifdef TURBOMIND_FUZZING

#include <cstdio>
#include <cstdlib>

#define FUZZ_TARGET(name)                                                   \
  static void name(std::string_view input);                                 \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    name(std::string_view(reinterpret_cast<const char*>(data), size));      \
    return 0;                                                               \
  }                                                                         \
  static void name(std::string_view input)

#define PROMISE(condition)                                      \
  do {                                                          \
    if (!(condition)) {                                         \
      std::fprintf(stderr, "broken promise: %s\n", #condition); \
      std::abort();                                             \
    }                                                           \
  } while (false)

#else

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/check.h"

namespace turbomind::fuzz {

inline void replay(const std::string& name, void (*target)(std::string_view)) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(TURBOMIND_CORPUS "/" + name)) {
    std::ostringstream content;
    content << std::ifstream(file.path(), std::ios::binary).rdbuf();
    target(content.str());
    ++count;
  }
  CHECK(count > 0);
}

}  // namespace turbomind::fuzz

#define FUZZ_TARGET(name)                    \
  static void name(std::string_view input);  \
  TEST(name##_holds_for_the_kept_inputs) {   \
    ::turbomind::fuzz::replay(#name, &name); \
  }                                          \
  static void name(std::string_view input)

#define PROMISE(condition) CHECK(condition)

#endif

namespace turbomind::fuzz {

// Runs what may refuse its input, with an Error alone. Whether it did not.
template <class Body>
bool is_accepted(Body&& body) {
  try {
    body();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace turbomind::fuzz
