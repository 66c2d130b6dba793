// Worker process of a rank.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace turbomind {

class WorkerProcess {
 public:
  // Starts `command`, with `inherited` as file descriptor kWorkerChannel and, as kWorkerLifeline, one that reads the
  // end of a file as soon as this object, or this process, is gone. Throws Error(kUnavailable).
  WorkerProcess(const std::vector<std::string>& command, int inherited);
  // Kills it.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;

  // How it ended, as a sentence's end ("was killed by signal 9"); empty while it runs.
  std::string how_it_ended();
  pid_t pid() const { return pid_; }
  // Readable once it has ended.
  int watched_fd() const { return pidfd_.get(); }

 private:
  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  FileDescriptor lifeline_;
  std::string end_;
};

inline constexpr int kWorkerChannel = 3;
inline constexpr int kWorkerLifeline = 4;

}  // namespace turbomind
