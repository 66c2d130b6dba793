#include "base/file_descriptor.h"

#include <unistd.h>

#include <utility>

namespace turbomind {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

}  // namespace turbomind
