#include "model/worker/worker_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

extern char** environ;

namespace turbomind {

namespace {

constexpr int kFirstFree = 10;  // above what the process gets

std::string describe(int status) {
  if (WIFSIGNALED(status)) return "was killed by signal " + std::to_string(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& command, int inherited) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorCode::kUnavailable, "a worker: no file descriptors are left");
  lifeline_ = FileDescriptor(ends[1]);
  const FileDescriptor end(ends[0]);
  const FileDescriptor worker_end(fcntl(end.get(), F_DUPFD_CLOEXEC, kFirstFree));
  const FileDescriptor channel(fcntl(inherited, F_DUPFD_CLOEXEC, kFirstFree));
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, channel.get(), kWorkerChannel);
  posix_spawn_file_actions_adddup2(&actions, worker_end.get(), kWorkerLifeline);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw Error(ErrorCode::kUnavailable, "a worker cannot be started: " + command[0] + ": " + std::strerror(error));
  }
  pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

WorkerProcess::~WorkerProcess() {
  lifeline_ = FileDescriptor();
  if (end_.empty()) {
    ::kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
}

std::string WorkerProcess::how_it_ended() {
  int status = 0;
  if (end_.empty() && waitpid(pid_, &status, WNOHANG) == pid_) end_ = describe(status);
  return end_;
}

}  // namespace turbomind
