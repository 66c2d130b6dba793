// Fault injection for the emulated runtime, and stand-ins for libraries' kernels: plain loops behind the same
// interfaces.
#pragma once

#include <cstddef>
#include <string>

#include "testing/cuda_emulated/runtime.h"

namespace turbomind::emulated {

// Injected error of the runtime's call named `name`. Every call asks, from any thread.
//
// While a file exists that the environment variable EMULATED_CUDA_LOST_FILE names, every call reports that the device
// is lost, and while one exists that EMULATED_CUDA_HUNG_FILE names, no call returns: for tests of processes of their
// own.
cudaError_t begin_call(const char* name);

// The call after the next `skipped` ones of that name reports `error`, and if it `lasts` every call from then on,
// whatever its name. An empty name stands for any call.
void inject_fault(const std::string& name, int skipped, cudaError_t error, bool lasts);
// The device's memory in bytes, from now on.
void set_device_memory(size_t bytes);
size_t device_memory();
// How often the call named `name` was made by now, by any thread; "copy to the device" is a call of cudaMemcpyAsync.
long calls_of(const std::string& name);
void count_call(const char* name);
// Whether CUDA loads all kernels at start: what CUDA_MODULE_LOADING said when any call was made first, in this process
// or after restart_runtime.
bool loads_eagerly();
void restart_runtime();
// No faults, and as much memory as at first.
void clear_faults();

// Behaviour of the library for an operator ("experts", "latents", "prompts", "scales"): it is absent, right, or
// computes nonsense; of "products", cuBLASLt's, it has no algorithms, and what it is asked for counts as launched.
enum class Library { kNone, kRight, kWrong };
// From the next device on; its launches are counted again.
void set_library(const std::string& name, Library library);
Library library(const std::string& name);

void count_library_launch(const std::string& name);
int library_launches(const std::string& name);

}  // namespace turbomind::emulated
