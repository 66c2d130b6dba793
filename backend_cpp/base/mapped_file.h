// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <string>

namespace turbomind {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws Error(kNotFound)
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace turbomind
