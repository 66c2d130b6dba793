// Runs every registered test, or those whose names contain the first argument.
#include <cstdio>
#include <cstring>
#include <exception>

#include "tests/check.h"

int main(int argc, char** argv) {
  int passed = 0;
  int failed = 0;
  for (const auto& test : turbomind::testing::test_cases()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    try {
      test.run();
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
