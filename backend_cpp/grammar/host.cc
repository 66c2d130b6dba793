// The program turbomind_grammar: reads the vocabulary, and forks a process for each grammar that the engine asks for.
//
// It has one thread, so a fork copies all there is. It ends when the engine closes its socket, however that comes
// about.
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/grammar/wire.h"
#include "grammar/worker.h"

namespace turbomind {

namespace {

struct Vocabulary {
  std::vector<std::string> tokens;
  SpecialTokens special;
  std::vector<int32_t> stop_token_ids;
};

Vocabulary read_vocabulary() {
  struct stat info{};
  if (fstat(wire::kVocabularyFile, &info) != 0) throw internal_error("there is no vocabulary");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        pread(wire::kVocabularyFile, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count <= 0) throw internal_error("the vocabulary cannot be read");
    done += static_cast<size_t>(count);
  }
  wire::Reader reader(bytes);
  Vocabulary vocabulary;
  const auto count = reader.get<uint32_t>();
  const auto stops = reader.get<uint32_t>();
  vocabulary.stop_token_ids = reader.get<int32_t>(stops);
  for (uint32_t token = 0; token < count; ++token) {
    const std::vector<char> text = reader.get<char>(reader.get<uint32_t>());
    vocabulary.tokens.emplace_back(text.begin(), text.end());
  }
  for (auto left = reader.get<uint32_t>(); left > 0; --left) {
    const auto token = reader.get<int32_t>();
    const std::vector<char> text = reader.get<char>(reader.get<uint32_t>());
    vocabulary.special.emplace_back(token, std::string(text.begin(), text.end()));
  }
  return vocabulary;
}

class Host {
 public:
  // Ends all processes when the engine is gone.
  void run(const Vocabulary& vocabulary) {
    std::unique_ptr<FormatCompiler> compiler;
    std::string failure;
    try {
      compiler = load_xgrammar(vocabulary.tokens, vocabulary.special, vocabulary.stop_token_ids);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    wire::HostOrder order;
    for (int socket = -1; wait_for(order, socket); socket = -1) {
      if (order.is_start) {
        start(order.process, socket, compiler.get(), failure, vocabulary.tokens.size());
      } else if (const auto known = processes_.find(order.process); known != processes_.end()) {
        kill(known->second, SIGKILL);
      }
    }
    for (const auto& [number, pid] : processes_) kill(pid, SIGKILL);
    for (const auto& [number, pid] : processes_) waitpid(pid, nullptr, 0);
  }

 private:
  // False: the engine is gone.
  bool wait_for(wire::HostOrder& order, int& socket) {
    while (true) {
      sigset_t none;
      sigemptyset(&none);
      pollfd wanted{wire::kControlSocket, POLLIN, 0};
      const int ready = ppoll(&wanted, 1, nullptr, &none);
      reap();
      if (ready <= 0) continue;
      iovec data{&order, sizeof(order)};
      alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = room;
      message.msg_controllen = sizeof(room);
      const ssize_t count = recvmsg(wire::kControlSocket, &message, MSG_CMSG_CLOEXEC);
      if (count != static_cast<ssize_t>(sizeof(order))) return false;
      if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) std::memcpy(&socket, CMSG_DATA(header), sizeof(int));
      return true;
    }
  }

  void reap() {
    while (true) {
      const pid_t pid = waitpid(-1, nullptr, WNOHANG);
      if (pid <= 0) return;
      std::erase_if(processes_, [pid](const auto& entry) { return entry.second == pid; });
    }
  }

  void start(uint64_t number, int socket, FormatCompiler* compiler, const std::string& failure, size_t vocab_size) {
    const pid_t host = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != host) _exit(0);
      close(wire::kControlSocket);
      signal(SIGCHLD, SIG_DFL);
      if (compiler != nullptr) run_worker(*compiler, socket, vocab_size);
      refuse(socket, failure);
    }
    if (pid > 0) processes_[number] = pid;
    close(socket);  // without a process, this notifies the engine
  }

  [[noreturn]] static void refuse(int socket, const std::string& why) {
    const std::string frame = wire::Writer(wire::kFailed)
                                  .put(uint8_t{0})
                                  .put(std::string_view("response_format is not supported here: " + why))
                                  .take();
    if (send(socket, frame.data(), frame.size(), MSG_NOSIGNAL) < 0) _exit(1);
    _exit(0);
  }

  std::map<uint64_t, pid_t> processes_;
};

void on_child(int) {}

}  // namespace

}  // namespace turbomind

int main() {
  using namespace turbomind;
  mallopt(M_ARENA_MAX, 1);  // the thread that compiles would map another, which the limit of memory counts
  syscall(SYS_close_range, wire::kVocabularyFile + 1, ~0U, 0);  // what the engine's process had open
  signal(SIGINT, SIG_IGN);                                      // Ctrl-C is the engine's affair
  signal(SIGPIPE, SIG_IGN);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);  // comes in ppoll alone
  signal(SIGCHLD, on_child);
  try {
    Host().run(read_vocabulary());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "turbomind_grammar: %s\n", error.what());
    return 1;
  }
  return 0;
}
