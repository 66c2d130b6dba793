// Deferred stream work, as on a device: it runs when somebody waits for it, or, at random, before. So what the host
// changes or frees too early shows.
//
// Each thread has one stream, as the project's threads do. Memory of the host that is not staging memory is read when a
// copy to the device is asked for, and a copy to such memory waits, as CUDA's do. Staging memory must be the same when
// it is read as when that was asked for: each time it is not counts as a call "staging memory changed too early".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace turbomind::emulated {

// From now on work is deferred, and done early by chance as `seed` says; 0: it is done at once.
void defer_work(uint64_t seed);
bool is_deferring();
// The work that the thread keeps next reads this memory of the host.
void record_read(const void* memory, size_t bytes);
// Work of the thread has written this memory of the host: what is kept reads that.
void record_written(const void* memory, size_t bytes);
// Keeps work for later, and maybe does some of what is kept.
void keep_work(std::function<void()> work);
// Does all that the thread's stream has kept.
void finish_work();

// Staging memory, by its address.
void record_staging(void* memory, size_t bytes);
void erase_staging(void* memory);
bool is_staging(const void* memory);

}  // namespace turbomind::emulated
