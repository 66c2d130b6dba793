// The engine's end of a process that parses response formats (grammar/main.cc).
//
// It parses one format at a time. Parsing cannot be interrupted, so a slow or cancelled format ends with its process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "base/file_descriptor.h"
#include "engine/grammar/wire.h"

namespace turbomind {

class GrammarProcess {
 public:
  struct Answer {
    wire::Type type;
    std::string payload;
  };

  // Starts `program`, which waits for the vocabulary. Throws Error if that fails.
  explicit GrammarProcess(const std::string& program);
  // Ends the process.
  ~GrammarProcess();
  GrammarProcess(const GrammarProcess&) = delete;

  // Throws Error if the process has ended, as does receive().
  void send(const std::string& frame);
  // The next answer. Polls `is_wanted`; empty: cancelled.
  std::optional<Answer> receive(const std::function<bool()>& is_wanted);

 private:
  FileDescriptor socket_;
  pid_t pid_ = -1;
  std::string received_;
};

}  // namespace turbomind
