// FUZZ_TARGET(name) { ... } is a promise about any `input` (std::string_view). With TURBOMIND_FUZZ libFuzzer looks for
// inputs that break it (`make fuzz`); in the tests it is tried on those kept in fuzz/corpus/<name>.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tests/check.h"

#ifdef TURBOMIND_FUZZING
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

// A safetensors file of its header, a 0 byte, and the tensors' bytes.
inline std::string safetensors(std::string_view input) {
  const uint64_t length = std::min(input.find('\0'), input.size());
  std::string content(reinterpret_cast<const char*>(&length), sizeof(length));
  content += input.substr(0, length);
  if (length < input.size()) content += input.substr(length + 1);
  return content;
}

// A file in memory, for readers that take a path.
class ScratchFile {
 public:
  explicit ScratchFile(std::string_view content) : descriptor_(::memfd_create("scratch", MFD_CLOEXEC)) {
    while (descriptor_ >= 0 && !content.empty()) {
      const ssize_t written = ::write(descriptor_, content.data(), content.size());
      if (written <= 0) throw internal_error("no room for a file in memory");
      content.remove_prefix(static_cast<size_t>(written));
    }
  }
  ~ScratchFile() { ::close(descriptor_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace turbomind::fuzz
