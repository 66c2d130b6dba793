// Reads response formats for the engine, one at a time.
#pragma once

#include "grammar/xgrammar.h"

namespace turbomind {

// Serves the engine at the other end of `socket` until it closes that, and ends the process. Without a reader, for the
// reason given, it refuses all formats. What it does is bounded:
//
//   processor time   of a format, as the engine says
//   memory           by a constant, alongside what it has
//   priority         low; of a format that takes long, idle
//
// A bound that is broken ends the process, after it has said which.
[[noreturn]] void run_worker(FormatReader* reader, const std::string& why_none, int socket);

}  // namespace turbomind
