// Uninitialised memory for tensors, of the host or of a device.
#pragma once

#include <cstddef>
#include <utility>

namespace turbomind {

class AlignedBuffer {
 public:
  // Gives memory back; must not throw.
  using Release = void (*)(void* data, size_t bytes);

  AlignedBuffer() = default;
  // Host memory: 64-byte aligned, backed by huge pages when large. Pages come from the kernel zeroed and only when
  // first touched. Throws std::bad_alloc.
  explicit AlignedBuffer(size_t bytes);
  // Takes over memory of a device.
  AlignedBuffer(void* data, size_t bytes, Release release) : data_(data), bytes_(bytes), release_(release) {}
  ~AlignedBuffer() {
    if (data_ != nullptr) release_(data_, bytes_);
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  size_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  // Host memory of at least `count` elements; where it grows, what it held is gone.
  template <class T>
  T* reserve(size_t count) {
    if (bytes_ < count * sizeof(T)) grow(count * sizeof(T));
    return as<T>();
  }

 private:
  void grow(size_t bytes);
  void swap(AlignedBuffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Release release_ = nullptr;
};

}  // namespace turbomind
