// CUDA's additions to C++ inside kernels: qualifiers, built-in variables, barriers, warp collectives, atomics,
// intrinsics.
#pragma once

#include <math.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "testing/cuda_emulated/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
// A block stays on one thread of the host, which runs one block at a time.
#define __shared__ static thread_local

#define threadIdx (::turbomind::emulated::current_thread->thread)
#define blockIdx (::turbomind::emulated::current_thread->block)
#define blockDim (::turbomind::emulated::current_thread->block_dim)
#define gridDim (::turbomind::emulated::current_thread->grid_dim)

// ---- barriers ----
inline void __syncthreads() {
  turbomind::emulated::block_barrier(false);
}
inline int __syncthreads_count(int predicate) {
  return turbomind::emulated::block_barrier(predicate != 0);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  turbomind::emulated::Lanes<int>("__syncwarp", mask, 0);
}
inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// ---- warp collectives ----
inline int tm_lane() {
  return turbomind::emulated::current_thread->lane;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const turbomind::emulated::Lanes<T> lanes("__shfl_sync", mask, value);
  return lanes[(tm_lane() & ~(width - 1)) | (source & (width - 1))];
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const turbomind::emulated::Lanes<T> lanes("__shfl_xor_sync", mask, value);
  const int source = tm_lane() ^ lane_mask;
  return (source | (width - 1)) == (tm_lane() | (width - 1)) ? lanes[source] : value;
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const turbomind::emulated::Lanes<T> lanes("__shfl_down_sync", mask, value);
  const int source = tm_lane() + static_cast<int>(delta);
  return source <= (tm_lane() | (width - 1)) ? lanes[source] : value;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const turbomind::emulated::Lanes<int> lanes("__ballot_sync", mask, predicate);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) votes |= lanes[lane] != 0 ? 1u << lane : 0u;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}

// ---- atomics; return what was there ----
template <class T, class Change>
T tm_atomic(T* address, Change&& change) {
  std::atomic_ref<T> target(*address);
  T before = target.load();
  while (!target.compare_exchange_weak(before, change(before))) {
  }
  return before;
}
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return tm_atomic(address, [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return tm_atomic(address, [&](T old) { return old | value; });
}

// ---- loads and stores with a hint ----
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// ---- bits and integers ----
inline unsigned __float_as_uint(float v) {
  return std::bit_cast<unsigned>(v);
}
inline float __uint_as_float(unsigned v) {
  return std::bit_cast<float>(v);
}
inline int __popc(unsigned v) {
  return std::popcount(v);
}
// Byte i of the result is byte number `selector >> 4 i & 7` of b:a, a the low half.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(both >> ((selector >> 4 * i & 7) * 8) & 0xFF) << 8 * i;
  return result;
}
template <class A, class B>
constexpr auto min(A a, B b) -> std::common_type_t<A, B> {
  return b < a ? b : a;
}
template <class A, class B>
constexpr auto max(A a, B b) -> std::common_type_t<A, B> {
  return a < b ? b : a;
}

// ---- float ----
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline int __float2int_rn(float v) {
  return static_cast<int>(nearbyintf(v));
}
