// Our end of a process that reads response formats (grammar/main.cc), and its life.
//
// It reads one format at a time. Reading cannot be interrupted; so what takes too long, or is not wanted any more, ends
// with its process.
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

// Tokens that stand for a mark, and its text: structural tags may name them.
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

  // Starts `program`; throws Error when that cannot be done.
  GrammarProcess(const std::string& program, const FileDescriptor& vocabulary);
  // Ends it.
  ~GrammarProcess();
  GrammarProcess(const GrammarProcess&) = delete;

  // Throws Error when the process has ended, as does receive().
  void send(const std::string& frame);
  // What it says next. Looks now and then whether that is wanted still; empty: it is not.
  std::optional<Answer> receive(const std::function<bool()>& is_wanted);

 private:
  FileDescriptor socket_;
  pid_t pid_ = -1;
  std::string received_;
};

}  // namespace turbomind
