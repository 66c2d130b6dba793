// Instructions of Hopper alone: copies by bulk, barriers in shared memory that count them, and the matrix instruction
// of four warps. Included by what is compiled for 9.0a or emulated; ptx.h has all others.
//
// SharedBarrier    completes a phase when `count` threads have arrived and all bytes that were announced have come;
//          phases alternate between 0 and 1, and wait(phase) returns when that phase has completed.
// bulk_copy    bytes from global to shared memory, by the copy engine; both aligned to 16 bytes, as is their number.
// wgmma_f16    d [64, kColumns] = or += a [64, 16] b [16, kColumns], half precision, by the four warps of a group
//          together; warp w of it has rows 16 w .. 16 w + 15, of a and, 8 columns after 8, of d, as mma in ptx.h.
//          b is in shared memory as k_rows says. It runs by itself: wgmma_fence comes before it when a thread has
//          written a or d, wgmma_commit closes a group, wgmma_wait<n> waits for all of these but the newest n, and what
//          they read and write must not be touched until then.
// k_rows   columns of b, as 8 x 8 blocks of 128 bytes, 16 for a column's 8 neighbouring k; blocks of neighbouring
//          columns follow one another, those of the next 8 k come kColumns * 16 bytes later.
#pragma once

#include "kernels/cuda/device.h"

#ifdef TM_CUDA_EMULATED
#include <emulated_hopper.h>
#endif

namespace turbomind::cuda {

#ifdef TM_CUDA_EMULATED

struct SharedBarrier {
  emulated::CountingBarrier state;

  void init(int count) { state = {static_cast<uint16_t>(count), static_cast<uint16_t>(count), 0, 0}; }
  static void publish() {}
  void arrive() { arrive_and_expect(0); }
  void arrive_and_expect(uint32_t bytes) {
    if (state.left == 0) emulated::fail("more threads come to a barrier than it counts");
    state.bytes += static_cast<int32_t>(bytes);
    --state.left;
    state.complete();
  }
  void wait(uint32_t phase) {
    while (state.phase == phase) emulated::let_block_run();
  }
};

inline void bulk_copy(void* shared, const void* global, uint32_t bytes, SharedBarrier& barrier) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16 != 0) {
    emulated::fail("a copy by bulk must be aligned to 16 bytes");
  }
  std::memcpy(shared, global, bytes);
  barrier.state.bytes -= static_cast<int32_t>(bytes);
  barrier.state.complete();
}
template <int kColumns>
const std::byte* k_rows(const void* shared) {
  return static_cast<const std::byte*>(shared);
}
// The same, 8 * `blocks` of k later.
template <int kColumns>
const std::byte* k_rows_after(const std::byte* rows, int blocks) {
  return rows + blocks * kColumns * 16;
}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kNewestLeft>
void wgmma_wait() {}
template <int kCount>
void keep_in_registers(float (&)[kCount]) {}
template <int kColumns>
void wgmma_f16(float (&d)[kColumns / 2], const uint32_t (&a)[4], const std::byte* b, bool adds) {
  emulated::wgmma<kColumns>(d, a, b, adds);
}

#elif defined(__CUDACC__)

struct SharedBarrier {
  uint64_t state;

  __device__ __forceinline__ void init(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&state)), "r"(count) : "memory");
  }
  // After init by one thread, before others meet it.
  __device__ __forceinline__ static void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(&state)) : "memory");
  }
  __device__ __forceinline__ void arrive_and_expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&state)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void wait(uint32_t phase) {
    uint32_t is_complete;
    do {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}\n"
          : "=r"(is_complete)
          : "r"(shared_address(&state)), "r"(phase)
          : "memory");
    } while (is_complete == 0);
  }
};

__device__ __forceinline__ void bulk_copy(void* shared, const void* global, uint32_t bytes, SharedBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(&barrier.state))
               : "memory");
}

template <int kColumns>
__device__ __forceinline__ uint64_t k_rows(const void* shared) {
  constexpr uint64_t kStrides = static_cast<uint64_t>(kColumns) << 16 | static_cast<uint64_t>(8) << 32;
  // The same in all lanes, which the compiler is to know.
  return kStrides | __shfl_sync(kAllLanes, shared_address(shared) >> 4 & 0x3FFF, 0);
}
template <int kColumns>
__device__ __forceinline__ uint64_t k_rows_after(uint64_t rows, int blocks) {
  return rows + blocks * kColumns;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kNewestLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kNewestLeft) : "memory");
}
// Keeps the compiler from moving uses of sums across.
template <int kCount>
__device__ __forceinline__ void keep_in_registers(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// adds: whether d is added to, otherwise it is written.
template <int kColumns>
__device__ __forceinline__ void wgmma_f16(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b, bool adds);

// Sums as operands of the instruction, and in its text; after them come those of a, b and `adds`.
#define TM_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TM_SUMS_8(i) TM_SUMS_4(i), TM_SUMS_4(i + 4)
#define TM_SUMS_16(i) TM_SUMS_8(i), TM_SUMS_8(i + 8)
#define TM_SUMS_32(i) TM_SUMS_16(i), TM_SUMS_16(i + 16)
#define TM_TEXT_4 "%0, %1, %2, %3"
#define TM_TEXT_8 TM_TEXT_4 ", %4, %5, %6, %7"
#define TM_TEXT_16 TM_TEXT_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TM_TEXT_32 TM_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TM_TEXT_48 TM_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TM_TEXT_64 TM_TEXT_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TM_WGMMA(COLUMNS, COUNT, INPUTS, ADDS, ...)                                                          \
  template <>                                                                                                \
  __device__ __forceinline__ void wgmma_f16<COLUMNS>(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b,  \
                                                     bool adds) {                                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\nwgmma.mma_async.sync.aligned.m64n" #COLUMNS \
                 "k16.f32.f16.f16 {" TM_TEXT_##COUNT "}, " INPUTS ", p, 1, 1, 0;\n}\n"                       \
                 : __VA_ARGS__                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));         \
  }
TM_WGMMA(8, 4, "{%4, %5, %6, %7}, %8", "%9", TM_SUMS_4(0))
TM_WGMMA(16, 8, "{%8, %9, %10, %11}, %12", "%13", TM_SUMS_8(0))
TM_WGMMA(32, 16, "{%16, %17, %18, %19}, %20", "%21", TM_SUMS_16(0))
TM_WGMMA(64, 32, "{%32, %33, %34, %35}, %36", "%37", TM_SUMS_32(0))
TM_WGMMA(96, 48, "{%48, %49, %50, %51}, %52", "%53", TM_SUMS_32(0), TM_SUMS_16(32))
TM_WGMMA(128, 64, "{%64, %65, %66, %67}, %68", "%69", TM_SUMS_32(0), TM_SUMS_32(32))
#undef TM_WGMMA

#endif

}  // namespace turbomind::cuda
