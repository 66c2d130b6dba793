// Libraries' kernels for tests: plain loops behind the interfaces that the libraries' real ones are behind.
#pragma once

#include <string>

namespace turbomind::emulated {

// What the library for an operator ("experts", "latents", "prompts", "scales") does: there is none, it is right, or it
// computes nonsense; of "products", cuBLASLt's, it has no algorithms, and
// what it is asked for counts as launched.
enum class Library { kNone, kRight, kWrong };
// From the next device on; its launches are counted again.
void set_library(const std::string& name, Library library);
Library library(const std::string& name);

void count_library_launch(const std::string& name);
int library_launches(const std::string& name);

}  // namespace turbomind::emulated
