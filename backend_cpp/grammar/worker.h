// The process of one grammar: compiles it, and says what may come next in responses that keep to it.
#pragma once

#include "grammar/xgrammar.h"

namespace turbomind {

// Serves the engine at the other end of `socket` until it closes that, and ends the process. What it does is bounded:
//
//   processor time   of a compilation as the engine says; of one mask, and of all masks that take long, by constants
//   memory           by a constant, alongside what it inherited
//   priority         low; of a compilation that takes long, idle; after a mask that takes long, the lowest for good
//
// A bound that is broken ends the process, after it has said which.
[[noreturn]] void run_worker(FormatCompiler& compiler, int socket, size_t vocab_size);

}  // namespace turbomind
