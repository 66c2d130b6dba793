#include "testing/cuda_emulated/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace turbomind::emulated {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 64 * kPage;

}  // namespace

#if defined(__x86_64__)

// Saves what a callee must keep, and the stack, in *from; continues where `to` was saved.
asm(R"(
.text
.p2align 4
.local tm_switch_fiber
.type tm_switch_fiber, @function
tm_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
.size tm_switch_fiber, .-tm_switch_fiber
.local tm_enter_fiber
.type tm_enter_fiber, @function
tm_enter_fiber:
  movq %r12, %rdi
  callq *%r13
  hlt
.size tm_enter_fiber, .-tm_enter_fiber
)");
extern "C" void tm_switch_fiber(void** from, void* to);
extern "C" void tm_enter_fiber();

namespace {

void switch_context(void** from, void* to) {
  tm_switch_fiber(from, to);
}

void* first_context(std::byte* stack, void (*begin)(Fiber*), Fiber* fiber) {
  auto* top = reinterpret_cast<uintptr_t*>(stack + kStackBytes) - 2;  // aligned to 16, as at a call
  *--top = reinterpret_cast<uintptr_t>(&tm_enter_fiber);
  *--top = 0;                                   // rbp
  *--top = 0;                                   // rbx
  *--top = reinterpret_cast<uintptr_t>(fiber);  // r12
  *--top = reinterpret_cast<uintptr_t>(begin);  // r13
  *--top = 0;                                   // r14
  *--top = 0;                                   // r15
  return top;
}

void drop_context(void*) {}

}  // namespace

#else

namespace {

void switch_context(void** from, void* to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

void enter(unsigned begin_high, unsigned begin_low, unsigned fiber_high, unsigned fiber_low) {
  const auto join = [](unsigned high, unsigned low) {
    return static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32 | low);
  };
  reinterpret_cast<void (*)(Fiber*)>(join(begin_high, begin_low))(
      reinterpret_cast<Fiber*>(join(fiber_high, fiber_low)));
}

void* first_context(std::byte* stack, void (*begin)(Fiber*), Fiber* fiber) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  const auto high = [](uintptr_t x) { return static_cast<unsigned>(static_cast<uint64_t>(x) >> 32); };
  const auto b = reinterpret_cast<uintptr_t>(begin);
  const auto f = reinterpret_cast<uintptr_t>(fiber);
  makecontext(context, reinterpret_cast<void (*)()>(&enter), 4, high(b), static_cast<unsigned>(b), high(f),
              static_cast<unsigned>(f));
  return context;
}

void drop_context(void* context) {
  delete static_cast<ucontext_t*>(context);
}

}  // namespace

#endif

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kPage, PROT_NONE);
  stack_ = static_cast<std::byte*>(memory);
}

Fiber::~Fiber() {
  drop_context(first_context_);
  munmap(stack_, kStackBytes);
}

void Fiber::begin(Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->back_stack_, &fiber->back_stack_bytes_);
#endif
  fiber->entry_();
}

void Fiber::prepare(Entry entry) {
  entry_ = entry;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_ + kPage, kStackBytes - kPage);  // what an abandoned run left
#endif
  drop_context(first_context_);
  first_context_ = fiber_context_ = first_context(stack_, &Fiber::begin, this);
}

void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes);
#endif
  switch_context(&back_context_, fiber_context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::leave_with([[maybe_unused]] void** fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, back_stack_, back_stack_bytes_);
#endif
  switch_context(&fiber_context_, back_context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber_fake_stack_, &back_stack_, &back_stack_bytes_);
#endif
}

void Fiber::leave() {
  leave_with(&fiber_fake_stack_);
}

void Fiber::leave_for_good() {
  leave_with(nullptr);
}

void Fiber::pass_to([[maybe_unused]] Fiber& other) {
#if defined(__SANITIZE_ADDRESS__)
  leave();  // who resumed it is on the stack that AddressSanitizer knows of
#else
  other.back_context_ = back_context_;
  switch_context(&fiber_context_, other.fiber_context_);
#endif
}

}  // namespace turbomind::emulated
