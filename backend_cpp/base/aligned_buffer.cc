#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <new>

namespace turbomind {

AlignedBuffer::AlignedBuffer(size_t bytes)
    : bytes_(bytes), release_([](void* data, size_t size) { ::munmap(data, size); }) {
  if (bytes == 0) return;
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= (size_t{2} << 20)) ::madvise(address, bytes, MADV_HUGEPAGE);
  data_ = address;
}

// Not inline: kernels of all instruction sets call it.
void AlignedBuffer::grow(size_t bytes) {
  *this = AlignedBuffer(bytes);
}

}  // namespace turbomind
