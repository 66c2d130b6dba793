// The engine's end of a process that parses response formats (grammar/main.cc).
//
// It parses one format at a time. Parsing cannot be interrupted, so a slow or cancelled format ends with its process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "engine/grammar/wire.h"

namespace turbomind {

// Special tokens and their texts, which structural tags may name.
using SpecialTokens = std::vector<std::pair<int32_t, std::string>>;

// The vocabulary for the processes, as a file. Throws Error.
FileDescriptor vocabulary_file(const std::vector<std::string>& vocabulary, const SpecialTokens& special,
                               const std::vector<int32_t>& stop_token_ids);

class GrammarProcess {
 public:
  struct Answer {
    wire::Type type;
    std::string payload;
  };

  // Starts `program`. Throws Error if that fails.
  GrammarProcess(const std::string& program, const FileDescriptor& vocabulary);
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
