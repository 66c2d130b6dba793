// The program that runs grammars' processes (grammar/host.cc), and its life.
//
// It is started with the engine, reads the vocabulary once, and forks a process a grammar, which inherits what was
// read. It has one thread, so that it may fork; an engine has many. It ends with the engine, and its processes end with
// it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"

namespace turbomind {

// Tokens that stand for a mark, and its text: structural tags may name them.
using SpecialTokens = std::vector<std::pair<int32_t, std::string>>;

class GrammarHost {
 public:
  // `vocabulary`: the bytes of each token, none for special ones. Starts the program; throws Error when that cannot be
  // done.
  GrammarHost(std::string program, const std::vector<std::string>& vocabulary, const SpecialTokens& special,
              const std::vector<int32_t>& stop_token_ids);
  // Ends the program and all its processes.
  ~GrammarHost();
  GrammarHost(const GrammarHost&) = delete;

  // Starts a process of that number and returns our end of its socket, which does not block. Starts the program again
  // if it has died. Throws Error(kUnavailable). Any thread.
  FileDescriptor start(uint64_t process);
  // Ends a process. Any thread.
  void kill(uint64_t process);

 private:
  void spawn();  // mu_ is held
  void reap();   // mu_ is held
  bool send(uint64_t process, int socket);

  const std::string program_;
  FileDescriptor vocabulary_;
  std::mutex mu_;
  FileDescriptor control_;  // guarded by mu_
  pid_t pid_ = -1;          // guarded by mu_
};

}  // namespace turbomind
