// How the tier of the cache in files is set up, and what it counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace turbomind {

struct DiskTierConfig {
  std::string directory;  // empty: there is no such tier
  uint64_t bytes = 0;
  std::string fingerprint;  // of the model and of all settings that keys, values and states depend on
  // How often uses are noted in files, and it is looked whether others have removed some.
  std::chrono::milliseconds look_interval = std::chrono::seconds(5);
};

struct DiskStats {
  int64_t files = 0;  // known to this process
  int64_t bytes = 0;  // of all
  int64_t written = 0;
  int64_t read = 0;
  int64_t damaged = 0;
  int64_t failures = 0;
};

}  // namespace turbomind
