// Fiber, a function with its own stack that can be suspended and resumed: a thread of an emulated block.
#pragma once

#include <cstddef>

namespace turbomind::emulated {

class Fiber {
 public:
  using Entry = void (*)();

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls `entry`, which must end with leave_for_good() and let no exception out.
  void prepare(Entry entry);
  // Called by the owner: runs the fiber until it calls leave() or leave_for_good().
  void resume();
  // Called by the fiber itself: goes back to who resumed it.
  void leave();
  void leave_for_good();
  // The same, but another fiber of the same owner continues where it can, and later goes back to who resumed this one.
  void pass_to(Fiber& other);

 private:
  static void begin(Fiber* fiber);
  void leave_with(void** fake_stack);

  std::byte* stack_;               // kStackBytes, the lowest page unmapped
  void* fiber_context_ = nullptr;  // while it is not running
  void* back_context_ = nullptr;   // of who resumed it
  // AddressSanitizer's record of a switch.
  void* fiber_fake_stack_ = nullptr;
  const void* back_stack_ = nullptr;
  size_t back_stack_bytes_ = 0;
  Entry entry_ = nullptr;
  void* first_context_ = nullptr;
};

}  // namespace turbomind::emulated
