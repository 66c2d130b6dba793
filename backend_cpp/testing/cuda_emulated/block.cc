#include "testing/cuda_emulated/block.h"

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "testing/cuda_emulated/fiber.h"

namespace turbomind::emulated {

constinit thread_local ThreadIndex* current_thread = nullptr;

namespace {

enum class State : uint8_t { kReady, kPolls, kAtWarp, kAtPart, kAtBlock, kAtPrevious, kGone };

constexpr int kParts = 16;  // ids of bar.sync; 0 is __syncthreads

struct Copy {
  void* to;
  const void* from;
  int bytes;
  int zero_bytes;
};

struct Thread {
  ThreadIndex position;  // first, so that current_thread finds the thread
  Fiber fiber;
  State state = State::kGone;
  bool has_awaited = false;
  int part = 0;  // where state is kAtPart
  struct Warp* warp = nullptr;
  std::deque<std::vector<Copy>> copies;  // groups, the open one last
};

struct Warp {
  Slot slots[2][kWarpLanes];
  int parity = 0;
  int arrived = 0;
  const char* collective = nullptr;
  Thread* threads = nullptr;
};

// Threads that wait at a barrier of a part.
struct Part {
  int arrived = 0;
  int threads = 0;
};

// The block that this thread of the host runs, and what it keeps from one to the next.
struct Block {
  std::unique_ptr<Thread[]> threads;
  std::unique_ptr<Warp[]> warps;
  int capacity = 0;
  int thread_count = 0;
  int predicates[2] = {0, 0};
  int parity = 0;
  Part parts[kParts];
  std::vector<uint4> shared;
  const Launch* launch = nullptr;
  const std::function<bool()>* wait_for_previous = nullptr;  // null: it has ended
  std::exception_ptr error;

  void reserve(int count, size_t shared_bytes);
  void run(size_t index);
  bool run_warp(Warp& warp);
  void run_phase(bool is_backwards);
  bool pass_barrier();
  bool pass_previous();
};

struct GivenUp {};

// Set while a block runs: unlike the block itself it has no initializer to ask for.
constinit thread_local Block* current_block = nullptr;

Block& block_of_this_thread() {
  thread_local Block block;
  return block;
}

Thread& self() {
  return *reinterpret_cast<Thread*>(current_thread);
}

std::string name(const Thread& thread) {
  const uint3& at = thread.position.thread;
  return "thread (" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}

void thread_main() {
  try {
    current_block->launch->kernel();
    if (current_block->launch->overlaps && !self().has_awaited) {
      fail((name(self()) + " has left the kernel without await_previous").c_str());
    }
  } catch (...) {
    if (!current_block->error) current_block->error = std::current_exception();
  }
  self().state = State::kGone;
  self().fiber.leave_for_good();
}

// Ends this lane's turn until its state is kReady again: the next lane of the warp that is ready continues.
void wait_in(State state) {
  Thread& thread = self();
  thread.state = state;
  for (int offset = 1; offset < kWarpLanes; ++offset) {
    Thread& next = thread.warp->threads[(thread.position.lane + offset) % kWarpLanes];
    if (next.state != State::kReady) continue;
    current_thread = &next.position;
    return thread.fiber.pass_to(next.fiber);
  }
  thread.fiber.leave();
}

void Block::reserve(int count, size_t shared_bytes) {
  if (capacity < count) {
    threads = std::make_unique<Thread[]>(static_cast<size_t>(count));
    warps = std::make_unique<Warp[]>(static_cast<size_t>(count / kWarpLanes));
    capacity = count;
    for (int i = 0; i < count; ++i) {
      threads[i].warp = &warps[i / kWarpLanes];
      threads[i].position.lane = i % kWarpLanes;
      if (i % kWarpLanes == 0) threads[i].warp->threads = &threads[i];
    }
  }
  thread_count = count;
  // Exactly as large as asked for, so that AddressSanitizer sees what is after.
  if (shared.size() != (shared_bytes + 15) / 16) std::vector<uint4>((shared_bytes + 15) / 16).swap(shared);
}

// Until each lane waits for others or is gone; returns whether any has run.
bool Block::run_warp(Warp& warp) {
  bool has_run = false;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    Thread& thread = warp.threads[lane];
    if (thread.state == State::kPolls) thread.state = State::kReady;
  }
  for (;;) {
    bool has_moved = false;
    bool is_polling = false;
    bool other_waits_for_previous = false;
    const Thread* waiting = nullptr;
    const Thread* other = nullptr;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      Thread& thread = warp.threads[lane];
      if (thread.state == State::kReady) {
        current_thread = &thread.position;
        thread.fiber.resume();
        current_thread = nullptr;
        if (error) std::rethrow_exception(error);
        has_moved = true;
      }
      is_polling |= thread.state == State::kPolls;
      if (thread.state == State::kAtPrevious) other_waits_for_previous = true;
      (thread.state == State::kAtWarp ? waiting : other) = &thread;
    }
    has_run |= has_moved;
    if (is_polling && !has_moved) return has_run;
    if (other_waits_for_previous && !has_moved) return has_run;
    if (waiting == nullptr && !has_moved) return has_run;
    if (!has_moved) {
      throw internal_error(name(*waiting) + " waits at " + warp.collective + " for " + name(*other) + ", which " +
                           (other->state == State::kGone ? "has left the kernel" : "waits at a barrier"));
    }
  }
}

// To the next __syncthreads, or the wait for the launch before.
void Block::run_phase(bool is_backwards) {
  const int count = thread_count / kWarpLanes;
  for (bool has_run = true; has_run; is_backwards = !is_backwards) {
    has_run = false;
    for (int w = 0; w < count; ++w) has_run |= run_warp(warps[is_backwards ? count - 1 - w : w]);
  }
  const Thread* waiting = nullptr;
  for (int i = 0; i < thread_count; ++i) {
    if (threads[i].state == State::kAtPrevious) return;  // may come yet
    if (threads[i].state == State::kAtPart) waiting = &threads[i];
  }
  if (waiting == nullptr) return;
  throw internal_error(name(*waiting) + " waits at barrier " + std::to_string(waiting->part) +
                       " for threads that do not come");
}

// Lets threads continue that wait for the launch before. Returns whether there are any.
bool Block::pass_previous() {
  bool has_any = false;
  for (int i = 0; i < thread_count; ++i) has_any |= threads[i].state == State::kAtPrevious;
  if (!has_any) return false;
  if (!(*wait_for_previous)()) throw GivenUp();
  wait_for_previous = nullptr;
  for (int i = 0; i < thread_count; ++i) {
    if (threads[i].state == State::kAtPrevious) threads[i].state = State::kReady;
  }
  return true;
}

// Returns whether there is more to run.
bool Block::pass_barrier() {
  if (pass_previous()) return true;
  const Thread* gone = nullptr;
  const Thread* waiting = nullptr;
  for (int i = 0; i < thread_count; ++i) (threads[i].state == State::kGone ? gone : waiting) = &threads[i];
  if (waiting == nullptr) return false;
  if (gone != nullptr) {
    throw internal_error(name(*waiting) + " waits at __syncthreads for " + name(*gone) + ", which has left the kernel");
  }
  for (int i = 0; i < thread_count; ++i) threads[i].state = State::kReady;
  parity ^= 1;
  predicates[parity] = 0;
  return true;
}

void Block::run(size_t index) {
  current_block = this;
  const dim3 grid = launch->grid;
  const dim3 block = launch->block;
  const auto number = static_cast<unsigned>(index);
  const uint3 position = {number % grid.x, number / grid.x % grid.y, number / (grid.x * grid.y)};
  reserve(static_cast<int>(block.x * block.y * block.z), launch->shared_bytes);
  error = nullptr;
  predicates[0] = predicates[1] = 0;
  for (Part& part : parts) part = {};
  std::memset(shared.data(), 0xFF, shared.size() * sizeof(uint4));
  for (int w = 0; w < thread_count / kWarpLanes; ++w) warps[w].arrived = 0;
  for (int i = 0; i < thread_count; ++i) {
    Thread& thread = threads[i];
    const auto at = static_cast<unsigned>(i);
    thread.position = {
        {at % block.x, at / block.x % block.y, at / (block.x * block.y)}, position, block, grid, i % kWarpLanes};
    thread.has_awaited = false;
    thread.copies.clear();
    thread.fiber.prepare(&thread_main);
    thread.state = State::kReady;
  }
  bool is_backwards = false;
  do {
    run_phase(is_backwards);
    is_backwards = !is_backwards;
  } while (pass_barrier());
}

void run_copy(const Copy& copy) {
  if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  std::memset(static_cast<std::byte*>(copy.to) + copy.bytes, 0, static_cast<size_t>(copy.zero_bytes));
}

ThreadPool& host_threads() {
  static ThreadPool pool(available_cpu_count());
  return pool;
}

}  // namespace

void run_block(const Launch& launch, size_t index, const std::function<bool()>& wait_for_previous) {
  Block& block = block_of_this_thread();
  block.launch = &launch;
  block.wait_for_previous = &wait_for_previous;
  try {
    block.run(index);
  } catch (const GivenUp&) {
    current_thread = nullptr;
  } catch (...) {
    current_thread = nullptr;
    throw;
  }
}

void run_grid(const Launch& launch, size_t skipped) {
  const dim3& grid = launch.grid;
  const dim3& block = launch.block;
  const size_t threads = static_cast<size_t>(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024 || threads % kWarpLanes != 0) {
    throw internal_error("a block must have 32 to 1024 threads, a multiple of 32, got " + std::to_string(threads));
  }
  if (launch.shared_bytes > 227 * 1024) {
    throw internal_error("a block has at most 227 KiB of shared memory, got " + std::to_string(launch.shared_bytes));
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
    throw internal_error("a grid has at least one block, and at most 65535 along y and z");
  }
  static std::mutex one_launch_at_a_time;
  const std::lock_guard launch_lock(one_launch_at_a_time);
  std::exception_ptr error;
  std::mutex mutex;  // guards error
  host_threads().parallel_for(static_cast<int>(launch.block_count()), [&](int index) {
    if (static_cast<size_t>(index) == skipped) return;
    try {
      Block& block = block_of_this_thread();
      block.launch = &launch;
      block.wait_for_previous = nullptr;
      block.run(static_cast<size_t>(index));
    } catch (...) {
      current_thread = nullptr;
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

void let_block_run() {
  self().state = State::kPolls;
  self().fiber.leave();
}

void await_previous() {
  Thread& thread = self();
  thread.has_awaited = true;
  if (current_block->wait_for_previous != nullptr) wait_in(State::kAtPrevious);
}

std::byte* dynamic_shared_memory() {
  return reinterpret_cast<std::byte*>(current_block->shared.data());
}

int block_barrier(bool predicate) {
  const int parity = current_block->parity;
  current_block->predicates[parity] += predicate ? 1 : 0;
  wait_in(State::kAtBlock);
  return current_block->predicates[parity];
}

void named_barrier(int id, int threads) {
  if (id < 1 || id >= kParts || threads <= 0 || threads % kWarpLanes != 0) {
    fail("a barrier has an id from 1 to 15, and whole warps");
  }
  Thread& thread = self();
  Part& part = current_block->parts[id];
  if (part.arrived > 0 && part.threads != threads) fail("threads come to one barrier with different numbers of them");
  part.threads = threads;
  thread.part = id;
  if (++part.arrived < threads) return wait_in(State::kAtPart);
  part.arrived = 0;
  for (int i = 0; i < current_block->thread_count; ++i) {
    Thread& other = current_block->threads[i];
    if (other.state == State::kAtPart && other.part == id) other.state = State::kReady;
  }
}

Slot* warp_barrier(const char* collective, uint32_t mask, const void* mine, size_t bytes, void (*combine)(Slot*)) {
  if (mask != 0xFFFFFFFFu) fail("a warp collective must name all 32 lanes");
  Thread& thread = self();
  Warp& warp = *thread.warp;
  Slot* slots = warp.slots[warp.parity];
  if (warp.arrived == 0) {
    warp.collective = collective;
  } else if (warp.collective != collective && std::strcmp(warp.collective, collective) != 0) {
    fail((name(thread) + " came to " + collective + " while other lanes wait at " + warp.collective).c_str());
  }
  std::memcpy(slots[thread.position.lane].bytes, mine, bytes);
  if (++warp.arrived < kWarpLanes) {
    wait_in(State::kAtWarp);
    return slots;
  }
  warp.arrived = 0;
  warp.parity ^= 1;
  if (combine != nullptr) combine(slots);
  for (int lane = 0; lane < kWarpLanes; ++lane) warp.threads[lane].state = State::kReady;
  return slots;
}

void start_copy(void* to, const void* from, int bytes, int zero_bytes) {
  Thread& thread = self();
  const bool is_early = current_block->wait_for_previous != nullptr;
  if (is_early || (thread.warp - current_block->warps.get()) % 2 != 0) return run_copy({to, from, bytes, zero_bytes});
  if (thread.copies.empty()) thread.copies.emplace_back();
  thread.copies.back().push_back({to, from, bytes, zero_bytes});
}

void close_copy_group() {
  Thread& thread = self();
  if (thread.copies.empty()) thread.copies.emplace_back();
  thread.copies.emplace_back();
}

void wait_for_copies(int newest_groups_left) {
  auto& copies = self().copies;
  // The open group, last, is not waited for.
  while (static_cast<int>(copies.size()) > newest_groups_left + 1) {
    for (const Copy& copy : copies.front()) run_copy(copy);
    copies.pop_front();
  }
}

void fail(const char* what) {
  throw internal_error(what);
}

}  // namespace turbomind::emulated
