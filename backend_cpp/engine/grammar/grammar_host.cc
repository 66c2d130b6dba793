#include "engine/grammar/grammar_host.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "engine/grammar/wire.h"

extern char** environ;

namespace turbomind {

namespace {

Error unavailable(const std::string& what) {
  return {ErrorCode::kUnavailable, "response_format: " + what + ": " + std::strerror(errno)};
}

std::pair<FileDescriptor, FileDescriptor> socket_pair(int type) {
  int ends[2];
  if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) throw unavailable("no socket");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

FileDescriptor vocabulary_file(const std::vector<std::string>& vocabulary, const SpecialTokens& special,
                               const std::vector<int32_t>& stop_token_ids) {
  std::string bytes;
  const auto put = [&](uint32_t number) { bytes.append(reinterpret_cast<const char*>(&number), sizeof(number)); };
  put(static_cast<uint32_t>(vocabulary.size()));
  put(static_cast<uint32_t>(stop_token_ids.size()));
  for (const int32_t token : stop_token_ids) put(static_cast<uint32_t>(token));
  for (const std::string& token : vocabulary) {
    put(static_cast<uint32_t>(token.size()));
    bytes += token;
  }
  put(static_cast<uint32_t>(special.size()));
  for (const auto& [token, text] : special) {
    put(static_cast<uint32_t>(token));
    put(static_cast<uint32_t>(text.size()));
    bytes += text;
  }
  FileDescriptor file(memfd_create("vocabulary", MFD_CLOEXEC));
  if (!file) throw unavailable("no memory for the vocabulary");
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t count = write(file.get(), bytes.data() + written, bytes.size() - written);
    if (count <= 0) throw unavailable("no memory for the vocabulary");
    written += static_cast<size_t>(count);
  }
  return file;
}

}  // namespace

GrammarHost::GrammarHost(std::string program, const std::vector<std::string>& vocabulary, const SpecialTokens& special,
                         const std::vector<int32_t>& stop_token_ids)
    : program_(std::move(program)), vocabulary_(vocabulary_file(vocabulary, special, stop_token_ids)) {
  const std::lock_guard lock(mu_);
  spawn();
}

GrammarHost::~GrammarHost() {
  const std::lock_guard lock(mu_);
  reap();
}

// It ends when nobody holds the other end of its socket, after its processes.
void GrammarHost::reap() {
  control_ = FileDescriptor();
  if (pid_ > 0) {
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  pid_ = -1;
}

void GrammarHost::spawn() {
  reap();
  auto [ours, theirs] = socket_pair(SOCK_SEQPACKET);
  // Numbers that neither of them is to get.
  const FileDescriptor control(fcntl(theirs.get(), F_DUPFD_CLOEXEC, 10));
  const FileDescriptor vocabulary(fcntl(vocabulary_.get(), F_DUPFD_CLOEXEC, 10));
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, control.get(), wire::kControlSocket);
  posix_spawn_file_actions_adddup2(&actions, vocabulary.get(), wire::kVocabularyFile);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  char* arguments[] = {const_cast<char*>(program_.c_str()), nullptr};
  errno = posix_spawn(&pid_, program_.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (errno != 0) {
    pid_ = -1;
    throw unavailable(program_ + " cannot be started");
  }
  control_ = std::move(ours);
}

FileDescriptor GrammarHost::start(uint64_t process) {
  auto [ours, theirs] = socket_pair(SOCK_STREAM);
  fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  const std::lock_guard lock(mu_);
  if (!send(process, theirs.get())) {
    spawn();
    if (!send(process, theirs.get())) throw unavailable(program_ + " ended");
  }
  return std::move(ours);
}

void GrammarHost::kill(uint64_t process) {
  const std::lock_guard lock(mu_);
  send(process, -1);
}

// With a socket: the order to start; without: to kill.
bool GrammarHost::send(uint64_t process, int socket) {
  if (!control_) return false;
  wire::HostOrder order;
  order.process = process;
  order.is_start = socket >= 0;
  iovec data{&order, sizeof(order)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (order.is_start) {
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &socket, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(control_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(order));
}

}  // namespace turbomind
