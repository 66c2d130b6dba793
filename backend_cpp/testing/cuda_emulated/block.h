// Blocks of threads on the CPU: each thread is a fiber; the threads of a block take turns on one thread of the host,
// and blocks are spread over the host's threads. A thread runs until it must wait for others, so what is written before
// a barrier is seen after it; and warps take turns forwards and backwards from one barrier to the next, so that a
// missing one shows in one of the two.
//
// Behaviour that a GPU leaves undefined throws turbomind::Error: a thread that leaves the kernel while others wait at
// __syncthreads, threads that no one else comes to meet at a barrier of a part, lanes of a warp that are at different
// collectives, a block that is not made of whole warps, a thread that leaves a kernel which overlaps with the launch
// before it and has not waited for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "testing/cuda_emulated/types.h"

namespace turbomind::emulated {

inline constexpr int kWarpLanes = 32;

// Of the thread that runs; valid inside a kernel only.
struct ThreadIndex {
  uint3 thread;
  uint3 block;
  dim3 block_dim;
  dim3 grid_dim;
  int lane;
};

// Kernels look at it all the time: it has no initializer to ask for.
extern constinit thread_local ThreadIndex* current_thread;

struct Launch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // of dynamic shared memory; starts as NaN
  std::function<void()> kernel;
  bool overlaps = false;  // may start before the launch before it has ended: each thread calls await_previous

  size_t block_count() const { return size_t{grid.x} * grid.y * grid.z; }
};

inline constexpr size_t kNoBlock = ~size_t{0};

// Runs the kernel once for each thread of all blocks but number `skipped`, and returns when all are done.
void run_grid(const Launch& launch, size_t skipped = kNoBlock);
// Runs one block. When no thread of it can continue before the launch before has ended, calls `wait_for_previous`; the
// block continues if this returns true, else it is given up.
void run_block(const Launch& launch, size_t index, const std::function<bool()>& wait_for_previous);

// Returns when the launch before has ended.
void await_previous();

std::byte* dynamic_shared_memory();

// __syncthreads; returns how many threads came with a predicate that holds.
int block_barrier(bool predicate);

// bar.sync: as __syncthreads, of `threads` threads that name the same id.
void named_barrier(int id, int threads);

// Values that the lanes of a warp show each other in one collective.
struct Slot {
  alignas(16) std::byte bytes[64];
};

// Puts this lane's value into its slot alongside the others'; when all 32 are there, the last applies `combine` to
// them. Returns the slots [32], valid until the lane's next collective but one.
Slot* warp_barrier(const char* collective, uint32_t mask, const void* mine, size_t bytes,
                   void (*combine)(Slot*) = nullptr);

// As above, for a value: lanes' values [32].
template <class T>
class Lanes {
 public:
  Lanes(const char* collective, uint32_t mask, const T& mine) {
    static_assert(sizeof(T) <= sizeof(Slot));
    slots_ = warp_barrier(collective, mask, &mine, sizeof(T));
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
// those of even warps when they are waited for: what is right for only one of them shows. All do at once while the
// block waits for the launch before.
void start_copy(void* to, const void* from, int bytes, int zero_bytes);
void close_copy_group();
void wait_for_copies(int newest_groups_left);

// Raised from inside a kernel; ends the launch.
[[noreturn]] void fail(const char* what);

}  // namespace turbomind::emulated
