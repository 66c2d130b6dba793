#include "engine/grammar/grammar_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

extern char** environ;

namespace turbomind {

namespace {

constexpr int kLookMilliseconds = 50;  // how often receive() asks whether it is wanted

Error unavailable(const std::string& what) {
  return {ErrorCode::kUnavailable, "response_format: " + what + ": " + std::strerror(errno)};
}

Error ended() {
  return {ErrorCode::kUnavailable, "the process that reads the response format ended; try again"};
}

}  // namespace

GrammarProcess::GrammarProcess(const std::string& program) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw unavailable("no socket");
  socket_ = FileDescriptor(ends[0]);
  const FileDescriptor theirs(ends[1]);
  const FileDescriptor socket(fcntl(theirs.get(), F_DUPFD_CLOEXEC, wire::kSocket + 1));  // not what it becomes
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, socket.get(), wire::kSocket);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  char* arguments[] = {const_cast<char*>(program.c_str()), nullptr};
  errno = posix_spawn(&pid_, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (errno == 0) return;
  pid_ = -1;
  throw unavailable(program + " cannot be started");
}

GrammarProcess::~GrammarProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

void GrammarProcess::send(const std::string& frame) {
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t count = ::send(socket_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw ended();
    sent += static_cast<size_t>(count);
  }
}

std::optional<GrammarProcess::Answer> GrammarProcess::receive(const std::function<bool()>& is_wanted) {
  std::array<char, 1 << 16> room;
  Answer answer;
  while (!wire::take_frame(received_, answer.type, answer.payload)) {
    pollfd wanted{socket_.get(), POLLIN, 0};
    if (poll(&wanted, 1, kLookMilliseconds) <= 0) {
      if (!is_wanted()) return std::nullopt;
      continue;
    }
    const ssize_t count = recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (count > 0) {
      received_.append(room.data(), static_cast<size_t>(count));
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      throw ended();
    }
  }
  return answer;
}

}  // namespace turbomind
