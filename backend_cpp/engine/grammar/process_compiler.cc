#include "engine/grammar/process_compiler.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <list>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "engine/grammar/automaton_grammar.h"
#include "engine/grammar/token_trie.h"

extern char** environ;

namespace turbomind {

namespace {

// The engine's end of a process that parses response formats (lmdeploy/grammars/__main__.py).
//
// It parses one format at a time. Parsing cannot be interrupted, so a slow or cancelled format ends with its process.
class GrammarProcess {
 public:
  struct Answer {
    wire::Type type;
    std::string payload;
  };

  // Starts `program`, which waits for the vocabulary. Throws Error if that fails.
  explicit GrammarProcess(const std::vector<std::string>& program);
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

constexpr int kLookMilliseconds = 50;  // how often receive() asks whether it is wanted

Error unavailable(const std::string& what) {
  return {ErrorCode::kUnavailable, "response_format: " + what + ": " + std::strerror(errno)};
}

Error ended() {
  return {ErrorCode::kUnavailable, "the process that reads the response format ended; try again"};
}

GrammarProcess::GrammarProcess(const std::vector<std::string>& program) {
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
  std::vector<char*> arguments;
  for (const std::string& word : program) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  errno = posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (errno == 0) return;
  pid_ = -1;
  throw unavailable(program[0] + " cannot be started");
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

constexpr size_t kMaxKept = 64;
constexpr size_t kKeptBytes = size_t{512} << 20;
constexpr size_t kMaxIdle = 2;  // processes

class ProcessCompiler final : public GrammarCompiler {
 public:
  // Starts a process.
  ProcessCompiler(std::vector<std::string> program, wire::Vocabulary vocabulary, double seconds)
      : program_(std::move(program)),
        vocabulary_(wire::frame_of(vocabulary)),
        tokens_(std::make_shared<TokenTrie>(std::move(vocabulary.tokens))),
        seconds_(seconds) {
    put_back(start());
  }

  std::shared_ptr<const Grammar> compile(const std::string& response_format, const Waiting& waiting) override {
    if (GrammarRef known = find(response_format)) return known;
    waiting.on_begin();
    const std::string order =
        wire::Writer(wire::kFormat).put(static_cast<uint32_t>(seconds_ * 1000)).put(response_format).take();
    Process process;  // one that is not put back ends
    std::optional<GrammarProcess::Answer> answer;
    for (bool is_new = false; !process;) {
      process = take_idle();
      is_new = process == nullptr;
      if (is_new) process = start();
      try {
        process->send(order);
        answer = process->receive(waiting.is_wanted);
      } catch (const Error&) {
        if (is_new) throw;
        process = nullptr;  // it had ended while it was idle
      }
    }
    if (answer && answer->type == wire::kSlow) {
      if (!waiting.may_take_long()) return nullptr;
      answer = process->receive(waiting.is_wanted);
    } else if (answer) {
      put_back(std::move(process));
    }
    if (!answer) return nullptr;
    if (answer->type == wire::kReady) {
      GrammarRef grammar = read_grammar(answer->payload);
      keep(response_format, grammar);
      return grammar;
    }
    wire::Reader reader(answer->payload);
    const bool is_to_blame = reader.get<uint8_t>() != 0;
    throw Error(is_to_blame ? ErrorCode::kInvalidArgument : ErrorCode::kInternal, reader.rest());
  }

 private:
  using GrammarRef = std::shared_ptr<const AutomatonGrammar>;
  using Kept = std::list<std::pair<std::string, GrammarRef>>;
  using Process = std::unique_ptr<GrammarProcess>;

  GrammarRef find(const std::string& response_format) {
    const std::lock_guard lock(mu_);
    const auto known = std::ranges::find(kept_, response_format, &Kept::value_type::first);
    if (known == kept_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, known);
    return known->second;
  }

  void keep(const std::string& response_format, const GrammarRef& grammar) {
    const std::lock_guard lock(mu_);
    kept_.emplace_front(response_format, grammar);
    size_t bytes = 0;
    for (const auto& entry : kept_) bytes += entry.second->bytes();
    while (kept_.size() > 1 && (kept_.size() > kMaxKept || bytes > kKeptBytes)) {
      bytes -= std::min(bytes, kept_.back().second->bytes());
      kept_.pop_back();
    }
  }

  Process start() const {
    auto process = std::make_unique<GrammarProcess>(program_);
    process->send(vocabulary_);
    return process;
  }

  // Null: none.
  Process take_idle() {
    const std::lock_guard lock(mu_);
    if (idle_.empty()) return nullptr;
    Process process = std::move(idle_.back());
    idle_.pop_back();
    return process;
  }

  void put_back(Process&& process) {
    const std::lock_guard lock(mu_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(process));
  }

  GrammarRef read_grammar(const std::string& payload) const {
    wire::Reader reader(payload);
    SpecialTokens marks = reader.special_tokens();
    GrammarProgram program;
    program.nodes = reader.list<GrammarProgram::Node>();
    program.lists = reader.list<int32_t>();
    program.starts = reader.list<int32_t>();
    program.least = reader.list<int32_t>();
    require_known_tokens(program, marks);
    return std::make_shared<const AutomatonGrammar>(tokens_, std::move(program), std::move(marks));
  }

  // Throws Error for numbers that are no tokens'.
  void require_known_tokens(const GrammarProgram& program, const SpecialTokens& marks) const {
    if (!program.is_sound()) throw internal_error("response_format: its program is broken");
    const auto size = static_cast<int32_t>(tokens_->vocabulary().size());
    const auto require = [&](int32_t token) {
      if (token >= 0 && token < size) return;
      throw invalid_argument("response_format: there is no token " + std::to_string(token) + "; the last one is " +
                             std::to_string(size - 1));
    };
    for (const auto& [token, text] : marks) require(token);
    for (const GrammarProgram::Node& node : program.nodes) {
      if (node.kind == GrammarProgram::kToken) std::ranges::for_each(program.list(node), require);
    }
  }

  const std::vector<std::string> program_;
  const std::string vocabulary_;  // as a frame for the processes
  const std::shared_ptr<const TokenTrie> tokens_;
  const double seconds_;
  std::mutex mu_;
  Kept kept_;                  // guarded by mu_; latest first
  std::vector<Process> idle_;  // guarded by mu_
};

}  // namespace

std::unique_ptr<GrammarCompiler> load_grammar_compiler(std::vector<std::string> program, wire::Vocabulary vocabulary,
                                                       double seconds, std::string& reason) {
  try {
    if (!program.empty()) {
      return std::make_unique<ProcessCompiler>(std::move(program), std::move(vocabulary), seconds);
    }
    reason = "turbomind_grammar was not built";
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return nullptr;
}

}  // namespace turbomind
