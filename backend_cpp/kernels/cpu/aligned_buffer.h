// Working space of a thread, kept from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace turbomind {

template <class T>
class AlignedBuffer {
 public:
  // Of at least `size` elements, at the begin of a cache line; what it holds is anything.
  T* reserve(size_t size) {
    constexpr size_t kLine = 64;
    constexpr size_t kSlack = kLine / sizeof(T);
    if (held_.size() < size + kSlack) held_.resize(size + kSlack);
    const uintptr_t past = reinterpret_cast<uintptr_t>(held_.data()) % kLine;
    return held_.data() + (past == 0 ? 0 : (kLine - past) / sizeof(T));
  }

 private:
  std::vector<T> held_;
};

}  // namespace turbomind
