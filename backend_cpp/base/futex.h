// Waiting for a number in memory that processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace turbomind {

// Returns when `word` is no longer `value`, when it was woken, or after `timeout`; the caller looks again.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds timeout);

// Wakes all that wait for `word`, in any process.
void futex_wake(const std::atomic<uint32_t>& word);

}  // namespace turbomind
