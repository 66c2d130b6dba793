// A directory of a test's own, and what may happen to the files in it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace turbomind::testing {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string path = (std::filesystem::temp_directory_path() / "disk_tier_XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path() const { return path_; }

 private:
  std::string path_;
};

// The files of contents, in the order of their names.
inline std::vector<std::filesystem::path> content_files(const std::string& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

inline void flip_bit(const std::filesystem::path& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at / 8));
  const auto byte = static_cast<char>(file.get() ^ 1 << at % 8);
  file.seekp(static_cast<std::streamoff>(at / 8));
  file.put(byte);
}

}  // namespace turbomind::testing
