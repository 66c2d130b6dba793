// Instructions that CUDA C++ has no function for; all PTX but that of hopper.h is here. Included by device.h.
//
// mma    d [16, 8] += a [16, 16] b [16, 8]. Lane l, g = l / 4, t = l % 4, holds (low half of a word first)
//          a[0] row g, columns 2 t and 2 t + 1;  a[1] row g + 8;  a[2] row g, columns 2 t + 8, + 9;  a[3] row g + 8
//          b[0] column g, rows 2 t and 2 t + 1;  b[1] rows 2 t + 8, + 9
//          d[0], d[1] row g, columns 2 t and 2 t + 1;  d[2], d[3] row g + 8
// ldmatrix_x4, _x2    8 x 8 matrices of 16-bit elements from shared memory: lanes 8 m .. 8 m + 7 point at the rows
//          (16 bytes, aligned) of matrix m; fragment m gets row g, columns 2 t and 2 t + 1, or, transposed, column g,
//          rows 2 t and 2 t + 1.
// transpose_8x8    of 16-bit elements: a lane gives row g, columns 2 t and 2 t + 1, and gets column g, rows 2 t, 2 t
// + 1. load_once_16, _8, _4    of global memory that is read once: it takes no place in the first-level cache.
// cp_async_16, _8, _4    16, 8 or 4 bytes from global to shared memory, both aligned to as many, or, where not valid,
//          zeros and nothing is read. Copies up to a commit form a group; cp_async_wait<n> waits for all groups of this
//          thread but the newest n.
// barrier  meets as __syncthreads does, but only `threads` threads of the block, whole warps; id is 1 to 15.
// start_next, await_previous    griddepcontrol: device.h says what kernels owe each other. No instruction before
//          compute capability 9.0, where a launch starts when the one before it has ended.
#pragma once

#ifdef TM_CUDA_EMULATED
#include <emulated_ptx.h>
#endif

namespace turbomind::cuda {

#ifdef TM_CUDA_EMULATED

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulated::mma<bf16>(d, a, b);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulated::mma<half>(d, a, b);
}
inline void ldmatrix_x4(uint32_t (&fragments)[4], const void* row) {
  emulated::ldmatrix(fragments, row, false);
}
inline void ldmatrix_x4_transposed(uint32_t (&fragments)[4], const void* row) {
  emulated::ldmatrix(fragments, row, true);
}
inline void ldmatrix_x2_transposed(uint32_t (&fragments)[2], const void* row) {
  emulated::ldmatrix(fragments, row, true);
}
inline uint32_t transpose_8x8(uint32_t row) {
  return emulated::transpose_8x8(row);
}
inline uint4 load_once_16(const void* global) {
  return *static_cast<const uint4*>(global);
}
inline uint2 load_once_8(const void* global) {
  return *static_cast<const uint2*>(global);
}
inline uint32_t load_once_4(const void* global) {
  return *static_cast<const uint32_t*>(global);
}
inline void cp_async_16(void* shared, const void* global, bool is_valid = true) {
  emulated::cp_async(shared, global, 16, is_valid);
}
inline void cp_async_8(void* shared, const void* global, bool is_valid = true) {
  emulated::cp_async(shared, global, 8, is_valid);
}
inline void cp_async_4(void* shared, const void* global, bool is_valid = true) {
  emulated::cp_async(shared, global, 4, is_valid);
}
inline void cp_async_commit() {
  emulated::close_copy_group();
}
template <int kNewestLeft>
void cp_async_wait() {
  emulated::wait_for_copies(kNewestLeft);
}
inline void barrier(int id, int threads) {
  emulated::named_barrier(id, threads);
}
// Bit i of the result is bit (a_i, b_i, c_i) of kTable: 0xF0 is a, 0xCC is b, 0xAA is c.
template <int kTable>
uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result = 0;
  for (int i = 0; i < 8; ++i) {
    if ((kTable >> i & 1) != 0) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}
inline void start_next() {}
inline void await_previous() {
  emulated::await_previous();
}
// 2^v within 2 ulp of float32.
inline float fast_exp2(float v) {
  return exp2f(v);
}
inline float fast_log2(float v) {
  return log2f(v);
}

#elif defined(__CUDACC__)

__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&fragments)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&fragments)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_transposed(uint32_t (&fragments)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(fragments[0]), "=r"(fragments[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t row) {
  uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(column) : "r"(row));
  return column;
}
__device__ __forceinline__ uint4 load_once_16(const void* global) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}
__device__ __forceinline__ uint2 load_once_8(const void* global) {
  uint2 value;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];\n"
               : "=r"(value.x), "=r"(value.y)
               : "l"(global));
  return value;
}
__device__ __forceinline__ uint32_t load_once_4(const void* global) {
  uint32_t value;
  asm volatile("ld.global.L1::no_allocate.L2::128B.u32 %0, [%1];\n" : "=r"(value) : "l"(global));
  return value;
}
// .cg keeps the copy out of the first-level cache; it exists for 16 bytes only.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool is_valid = true) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(is_valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_8(void* shared, const void* global, bool is_valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(is_valid ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_4(void* shared, const void* global, bool is_valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(is_valid ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kNewestLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kNewestLeft) : "memory");
}
__device__ __forceinline__ void start_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void await_previous() {
  start_next();
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
template <int kTable>
__device__ __forceinline__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, %4;\n" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(kTable));
  return result;
}
__device__ __forceinline__ float fast_exp2(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(v));
  return result;
}
__device__ __forceinline__ float fast_log2(float v) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(v));
  return result;
}

#endif

}  // namespace turbomind::cuda
