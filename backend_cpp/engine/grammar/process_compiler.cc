#include "engine/grammar/process_compiler.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/json.h"
#include "engine/grammar/automaton_grammar.h"
#include "engine/grammar/token_trie.h"
#include "model/worker/worker_process.h"

namespace turbomind {

namespace {

constexpr int kLookMilliseconds = 50;  // how often a process is looked at
constexpr double kQuickSeconds = 0.1;  // of processor time
constexpr size_t kMaxFrame = size_t{64} << 20;

// Frame from a process: uint32 count of the bytes after the type, the type, these bytes. Frame to it: uint32 length, a
// text.
enum Type : char {
  kLoaded = 'L',    // that it can be sent formats
  kProgram = 'P',   // of a format (GrammarProgram)
  kTag = 'T',       // the same of a structural tag
  kRejected = 'R',  // why the format is rejected
  kFailed = 'F',    // why it is not, but there is no program
  kTooBig = 'M',    // why it is rejected; the process ends
};

// Throws Error if there are no file descriptors left.
struct SocketPair {
  SocketPair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw Error(ErrorCode::kUnavailable, "response_format: no file descriptors are left");
    }
    first = FileDescriptor(ends[0]);
    second = FileDescriptor(ends[1]);
  }
  FileDescriptor first, second;
};

// The engine's end of a process that parses response formats (lmdeploy/grammars/__main__.py).
//
// It parses one format at a time. Parsing cannot be interrupted, so a slow or cancelled format ends with its process.
class GrammarProcess {
 public:
  struct Answer {
    char type;
    std::string payload;
  };

  // Starts `program`. Throws Error if that fails.
  explicit GrammarProcess(const std::vector<std::string>& program) : GrammarProcess(program, SocketPair()) {}

  // Throws Error if the process has ended, as does receive().
  void send(const std::string& text);
  // The next answer. Polls `may_continue`; empty: cancelled.
  std::optional<Answer> receive(const std::function<bool()>& may_continue);
  // Waits until it is loaded. Throws Error if it cannot be; false: cancelled.
  bool load(const std::function<bool()>& may_continue);

  bool has_ended() const {
    char byte;
    return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }
  // Processor time that it has taken.
  double seconds() const;
  // From now on it runs when nobody else would.
  void make_way() {
    const sched_param none{};
    sched_setscheduler(process_.pid(), SCHED_IDLE, &none);
  }

 private:
  GrammarProcess(const std::vector<std::string>& program, SocketPair&& ends)
      : socket_(std::move(ends.first)), process_(program, ends.second.get()) {}

  FileDescriptor socket_;
  WorkerProcess process_;
  bool is_loaded_ = false;
  std::string received_;
};

Error ended() {
  return {ErrorCode::kUnavailable, "the process that reads the response format ended; try again"};
}

void GrammarProcess::send(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  const std::string frame = std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t count = ::send(socket_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw ended();
    sent += static_cast<size_t>(count);
  }
}

std::optional<GrammarProcess::Answer> GrammarProcess::receive(const std::function<bool()>& may_continue) {
  std::array<char, 1 << 16> room;
  for (size_t frame_bytes = sizeof(uint32_t) + 1; received_.size() < frame_bytes;) {
    pollfd socket{socket_.get(), POLLIN, 0};
    if (poll(&socket, 1, kLookMilliseconds) <= 0) {
      if (!may_continue()) return std::nullopt;
      continue;
    }
    const ssize_t count = recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) throw ended();
    if (count > 0) received_.append(room.data(), static_cast<size_t>(count));
    if (received_.size() < frame_bytes) continue;
    uint32_t size = 0;
    std::memcpy(&size, received_.data(), sizeof(size));
    if (size > kMaxFrame) throw internal_error("response_format: its program is too large");
    frame_bytes = sizeof(size) + 1 + size;
  }
  Answer answer{received_[sizeof(uint32_t)], received_.substr(sizeof(uint32_t) + 1)};
  received_.clear();
  return answer;
}

bool GrammarProcess::load(const std::function<bool()>& may_continue) {
  if (is_loaded_) return true;
  const std::optional<Answer> answer = receive(may_continue);
  if (answer && answer->type != kLoaded) throw internal_error(answer->payload);
  return is_loaded_ = answer.has_value();
}

double GrammarProcess::seconds() const {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(process_.pid(), &clock) == 0) clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

constexpr size_t kMaxKept = 64;
constexpr size_t kKeptBytes = size_t{512} << 20;
constexpr size_t kMaxIdle = 2;                  // processes
constexpr std::chrono::seconds kStartDelay(2);  // engines that end before, and had no format, have no process

class ProcessCompiler final : public GrammarCompiler {
 public:
  ProcessCompiler(std::vector<std::string> program, std::vector<std::string> vocabulary, SpecialTokens special,
                  double seconds)
      : program_(std::move(program)),
        tokens_(std::async(std::launch::async,
                           [vocabulary = std::move(vocabulary)]() mutable -> std::shared_ptr<const TokenTrie> {
                             lower_thread_priority(kBackgroundNiceness);
                             return std::make_shared<TokenTrie>(std::move(vocabulary));
                           })),
        special_(std::move(special)),
        seconds_(seconds),
        starter_([this](const std::stop_token& stop) { start_process(stop); }) {}

  std::shared_ptr<const Grammar> compile(const std::string& response_format, const Waiting& waiting) override {
    if (GrammarRef known = find(response_format)) return known;
    waiting.on_begin();
    Process process = take_idle();  // one that is not put back ends
    if (!process->load(waiting.is_needed)) return nullptr;
    const double begun = process->seconds();
    bool is_slow = false;
    process->send(response_format);
    const auto answer = process->receive([&] {
      if (!waiting.is_needed()) return false;
      const double taken = process->seconds() - begun;
      if (taken >= seconds_) throw takes_too_long();
      if (is_slow || taken < kQuickSeconds) return true;
      is_slow = true;
      process->make_way();
      return waiting.may_take_long();
    });
    if (!answer) return nullptr;
    if (!is_slow && answer->type != kTooBig) put_back(std::move(process));
    if (answer->type == kRejected || answer->type == kTooBig) throw invalid_argument(answer->payload);
    if (answer->type == kFailed) throw internal_error(answer->payload);
    auto program = GrammarProgram::read(answer->payload);
    require_known_tokens(program);
    SpecialTokens tags = answer->type == kTag ? tags_in(response_format) : SpecialTokens();
    auto grammar = std::make_shared<const AutomatonGrammar>(tokens_.get(), std::move(program), std::move(tags));
    keep(response_format, grammar);
    return grammar;
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

  // Starts a process before there is a format.
  void start_process(const std::stop_token& stop) {
    std::unique_lock lock(mu_);
    if (stopped_.wait_for(lock, stop, kStartDelay, [this] { return !idle_.empty(); }) || stop.stop_requested()) return;
    try {
      idle_.push_back(std::make_unique<GrammarProcess>(program_));
    } catch (const Error&) {  // the first format says why
    }
  }

  Process take_idle() {
    const std::lock_guard lock(mu_);
    while (!idle_.empty()) {
      Process process = std::move(idle_.back());
      idle_.pop_back();
      if (!process->has_ended()) return process;
    }
    return std::make_unique<GrammarProcess>(program_);
  }

  void put_back(Process&& process) {
    const std::lock_guard lock(mu_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(process));
  }

  Error takes_too_long() const {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g", seconds_);
    return invalid_argument(std::string("response_format: compiling it takes more than grammar_compile_seconds, ") +
                            seconds +
                            " s of processor time; make it smaller, with shorter patterns and fewer repetitions");
  }

  // Throws Error for numbers that are no tokens'.
  void require_known_tokens(const GrammarProgram& program) const {
    const auto size = static_cast<int32_t>(tokens_.get()->vocabulary().size());
    for (const GrammarProgram::Node& node : program.nodes) {
      if (node.kind != GrammarProgram::kToken) continue;
      for (const int32_t token : program.list(node)) {
        if (token >= 0 && token < size) continue;
        throw invalid_argument("response_format: there is no token " + std::to_string(token) + "; the last one is " +
                               std::to_string(size - 1));
      }
    }
  }

  // Those special tokens whose texts a structural tag names. No others may come: a text in the tag could otherwise hold
  // any of them.
  SpecialTokens tags_in(const std::string& response_format) const {
    const std::string tag = without_escapes(Json::parse(response_format).at("structural_tag").dump());
    SpecialTokens tags = special_;
    std::erase_if(tags, [&](const auto& one) { return tag.find(without_escapes(one.second)) == std::string::npos; });
    return tags;
  }

  // Texts are escaped in JSON, and once more in a grammar that is there.
  static std::string without_escapes(std::string text) {
    std::erase(text, '\\');
    return text;
  }

  const std::vector<std::string> program_;
  const std::shared_future<std::shared_ptr<const TokenTrie>> tokens_;  // made while the engine serves
  const SpecialTokens special_;
  const double seconds_;
  std::mutex mu_;
  Kept kept_;                  // guarded by mu_; latest first
  std::vector<Process> idle_;  // guarded by mu_
  std::condition_variable_any stopped_;
  std::jthread starter_;  // ends before what it uses
};

}  // namespace

std::unique_ptr<GrammarCompiler> load_grammar_compiler(std::vector<std::string> program,
                                                       std::vector<std::string> vocabulary, SpecialTokens special,
                                                       double seconds) {
  return std::make_unique<ProcessCompiler>(std::move(program), std::move(vocabulary), std::move(special), seconds);
}

}  // namespace turbomind
