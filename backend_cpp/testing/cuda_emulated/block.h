// Blocks of threads on the CPU: each thread is a fiber; the threads of a block take turns on one thread of the host,
// and blocks are spread over the host's threads. A thread runs until it must wait for others, so what is written before
// a barrier is seen after it; and warps take turns forwards and backwards from one __syncthreads to the next, so that a
// missing one shows in one of the two.
//
// What a GPU would leave undefined throws turbomind::Error: a thread that leaves the kernel while others wait at
// __syncthreads, lanes of a warp that are at different collectives, a block that is not made of whole warps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "testing/cuda_emulated/types.h"

namespace turbomind::emulated {

inline constexpr int kWarpLanes = 32;

// Of the thread that runs; valid inside a kernel only.
struct ThreadPlace {
  uint3 thread;
  uint3 block;
  dim3 block_dim;
  dim3 grid_dim;
  int lane;
};

extern thread_local ThreadPlace* current_place;

// Runs `kernel` once for each thread and returns when all are done. Dynamic shared memory starts as NaN.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

std::byte* dynamic_shared_memory();

// __syncthreads; returns how many threads came with a predicate that holds.
int meet_block(bool predicate);

// What the lanes of a warp show each other in one collective.
struct Slot {
  alignas(16) std::byte bytes[64];
};

// Puts this lane's slot beside the others'; when all 32 are there, the last applies `combine` to them. Returns the
// slots [32], valid until the lane's next collective but one.
Slot* meet_warp(const char* collective, uint32_t mask, const Slot& mine, void (*combine)(Slot*) = nullptr);

// As above, for a value: lanes' values [32].
template <class T>
class Lanes {
 public:
  Lanes(const char* collective, uint32_t mask, const T& mine) {
    static_assert(sizeof(T) <= sizeof(Slot));
    Slot slot;
    std::memcpy(slot.bytes, &mine, sizeof(T));
    slots_ = meet_warp(collective, mask, slot);
  }
  T operator[](int lane) const {
    T value;
    std::memcpy(&value, slots_[lane & (kWarpLanes - 1)].bytes, sizeof(T));
    return value;
  }

 private:
  Slot* slots_;
};

// cp.async: copies may take place at any time until this thread waits for them. So those of odd warps do at once, and
// those of even warps when they are waited for: what is right for only one of them shows.
void start_copy(void* to, const void* from, int bytes, int zero_bytes);
void close_copy_group();
void wait_for_copies(int newest_groups_left);

// Raised from inside a kernel; ends the launch.
[[noreturn]] void fail(const char* what);

}  // namespace turbomind::emulated
