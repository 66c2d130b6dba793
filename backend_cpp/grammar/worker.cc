#include "grammar/worker.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/error.h"
#include "engine/grammar/wire.h"
#include "grammar/grammar_program.h"

namespace turbomind {

namespace {

constexpr int kPriority = 10;
constexpr int kSlowPriority = 19;
constexpr long kQuickCompileMs = 100;  // of processor time, as all that follow
constexpr long kQuickMaskMs = 20;
constexpr long kMaskMs = 500;           // of one mask
constexpr double kSlowMaskSeconds = 5;  // of all masks that take longer than a quick one
constexpr size_t kMemory = size_t{1} << 30;

// ---- the clock: what the signal handler does when time is up ----

// What takes time.
struct Timed {
  int socket = -1;
  volatile std::sig_atomic_t is_running = 0;
  volatile pid_t compiling_thread = 0;  // 0: a mask is found
  long left_ms = 0;                     // after the time that is quick
  bool is_slow = false;                 // that time is over
  bool says_so = false;                 // the engine wants to know
  std::string slow_frame;               // what it is given
  std::string failed_frame;             // what it is given when no time is left
};
Timed timed;

void set_timer(long milliseconds) {
  itimerval timer{};
  timer.it_value.tv_sec = milliseconds / 1000;
  timer.it_value.tv_usec = milliseconds % 1000 * 1000;
  setitimer(ITIMER_PROF, &timer, nullptr);
}

void write_all(int socket, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(0);  // nobody listens any more
    sent += static_cast<size_t>(count);
  }
}

// A compilation continues when nobody else would run: its thread ends with it. Masks come at the lowest priority that
// leaves a share, for good.
void make_way() {
  const sched_param none{};
  const pid_t compiling = timed.compiling_thread;
  if (compiling != 0 && sched_setscheduler(compiling, SCHED_IDLE, &none) == 0) return;
  setpriority(PRIO_PROCESS, static_cast<id_t>(compiling != 0 ? compiling : getpid()), kSlowPriority);
}

// Runs between any two instructions of the grammar's code: calls what a signal handler may call, and no more. Nothing
// else is being sent meanwhile.
void on_time_up(int) {
  if (timed.is_running == 0) return;
  if (timed.is_slow || timed.left_ms <= 0) {
    write_all(timed.socket, timed.failed_frame);
    _exit(1);
  }
  timed.is_slow = true;
  make_way();
  if (timed.says_so) write_all(timed.socket, timed.slow_frame);
  set_timer(timed.left_ms);
}

std::string failed(bool is_to_blame, const std::string& text) {
  return wire::Writer(wire::kFailed).put(static_cast<uint8_t>(is_to_blame)).put(std::string_view(text)).take();
}

// Bounds the processor time of what happens while it lives.
class TimeLimit {
 public:
  TimeLimit(long quick_ms, long limit_ms, bool says_so, const std::string& failure) {
    timed.left_ms = limit_ms - quick_ms;
    timed.is_slow = false;
    timed.says_so = says_so;
    timed.failed_frame = failed(true, failure);
    timed.is_running = 1;
    set_timer(std::min(quick_ms, limit_ms));
  }
  ~TimeLimit() {
    timed.is_running = 0;
    set_timer(0);
  }
  TimeLimit(const TimeLimit&) = delete;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// ---- limits of the process ----

void limit_memory() {
#ifndef __SANITIZE_ADDRESS__  // which maps terabytes
  unsigned long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  if (pages == 0) return;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kMemory;
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

void limit_process(int socket) {
  timed.socket = socket;
  timed.slow_frame = wire::Writer(wire::kSlow).take();
  struct sigaction action{};
  action.sa_handler = on_time_up;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  setpriority(PRIO_PROCESS, 0, std::max(getpriority(PRIO_PROCESS, 0), kPriority));
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  limit_memory();
}

// ---- the work ----

class Worker {
 public:
  Worker(FormatCompiler& compiler, int socket, size_t vocab_size)
      : compiler_(compiler), socket_(socket), mask_((vocab_size + 31) / 32) {}

  [[noreturn]] void run() {
    try {
      while (true) take(next_frame());
    } catch (const Error& error) {
      write_all(socket_, failed(error.code() == ErrorCode::kInvalidArgument, error.what()));
    } catch (const std::bad_alloc&) {
      write_all(socket_, failed(true, "response_format: it takes more than " + std::to_string(kMemory >> 20) +
                                          " MiB of memory"));
    } catch (const std::exception& error) {
      write_all(socket_, failed(false, std::string("response_format: ") + error.what()));
    }
    _exit(1);
  }

 private:
  wire::Type next_frame() {
    wire::Type type;
    char room[1 << 14];
    while (!wire::take_frame(received_, type, payload_)) {
      const ssize_t count = recv(socket_, room, sizeof(room), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) _exit(0);
      received_.append(room, static_cast<size_t>(count));
    }
    return type;
  }

  void take(wire::Type type) {
    wire::Reader reader(payload_);
    if (type == wire::kFormat) return read(reader);
    const auto id = reader.get<uint32_t>();
    if (type == wire::kOpen) stops_[id] = reader.rest<int32_t>();
    if (type == wire::kAdvance) advance(id, reader);
    if (type == wire::kClose) {
      matchers_.erase(id);
      stops_.erase(id);
    }
  }

  // Compiles a format that has no program. One that has is compiled when its first question comes, if one does.
  void read(wire::Reader& reader) {
    compile_ms_ = static_cast<long>(reader.get<uint32_t>());
    const std::string format = reader.text();
    Automaton::Program program;
    {
      const TimeLimit clock = compile_limit(true);
      run_on_compiling_thread([&] {
        format_ = compiler_.read(format);
        program = grammar_program(format_->source(),
                                  [&](const std::string& regex) { return compiler_.source_of_regex(regex); });
        if (program.nodes.empty()) compile();
      });
    }
    wire::Writer marks(wire::kReady);
    marks.put(static_cast<uint32_t>(format_->marks().size()));
    for (const auto& [token, text] : format_->marks()) {
      marks.put(token).put(static_cast<uint32_t>(text.size())).put(text);
    }
    write_all(socket_, marks.put(static_cast<uint8_t>(format_->is_printable()))
                           .put(static_cast<uint64_t>(is_compiled_ ? format_->bytes() : 0))
                           .put(static_cast<uint32_t>(program.nodes.size()))
                           .put(static_cast<uint32_t>(program.lists.size()))
                           .put(program.nodes)
                           .put(program.lists)
                           .put(program.starts)
                           .take());
  }

  void compile() {
    format_->compile();
    is_compiled_ = true;
  }

  // `says_so`: that it takes long.
  TimeLimit compile_limit(bool says_so) const {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g", static_cast<double>(compile_ms_) / 1000);
    return {kQuickCompileMs, compile_ms_, says_so,
            std::string("response_format: compiling it takes more than grammar_compile_seconds, ") + seconds +
                " s of processor time; make it smaller, with shorter patterns and fewer repetitions"};
  }

  // On a thread of its own, whose priority may fall without that of what comes later.
  template <class Work>
  static void run_on_compiling_thread(const Work& work) {
    std::exception_ptr failure;
    std::thread thread([&] {
      timed.compiling_thread = gettid();
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    thread.join();
    timed.compiling_thread = 0;
    if (failure) std::rethrow_exception(failure);
  }

  void advance(uint32_t id, wire::Reader& reader) {
    const auto question = reader.get<uint32_t>();
    const std::vector<int32_t> tokens = reader.rest<int32_t>();
    bool is_finished = false;
    if (!is_compiled_) {
      const TimeLimit clock = compile_limit(false);
      run_on_compiling_thread([this] { compile(); });
    }
    const double start = processor_seconds();
    {
      const TimeLimit clock(kQuickMaskMs, kMaskMs, false,
                            "response_format: finding what may come next takes more than " + std::to_string(kMaskMs) +
                                " ms of processor time; make it simpler: repetitions inside of repetitions cost most");
      TokenMatcher& matcher = matcher_of(id);
      for (const int32_t token : tokens) {
        if (!matcher.accept(token)) throw internal_error("a token outside the response format was chosen");
      }
      is_finished = matcher.is_finished();
      if (!is_finished) matcher.fill_mask(mask_);
    }
    wire::Writer state(wire::kState);
    state.put(question).put(static_cast<uint8_t>(is_finished));
    if (!is_finished) state.put(mask_);
    write_all(socket_, state.take());
    if (!timed.is_slow) return;
    slow_seconds_ += processor_seconds() - start;
    if (slow_seconds_ > kSlowMaskSeconds) {
      throw invalid_argument(
          "response_format: finding what may come next has taken more than 5 s of processor time; "
          "make it simpler: repetitions inside of repetitions cost most");
    }
  }

  TokenMatcher& matcher_of(uint32_t id) {
    std::unique_ptr<TokenMatcher>& matcher = matchers_[id];
    if (!matcher) matcher = format_->new_matcher(stops_[id]);
    return *matcher;
  }

  FormatCompiler& compiler_;
  const int socket_;
  std::vector<int32_t> mask_;
  std::string received_, payload_;
  std::unique_ptr<Format> format_;
  long compile_ms_ = 0;  // of processor time that compiling it may take
  bool is_compiled_ = false;
  std::map<uint32_t, std::unique_ptr<TokenMatcher>> matchers_;
  std::map<uint32_t, std::vector<int32_t>> stops_;
  double slow_seconds_ = 0;
};

}  // namespace

void run_worker(FormatCompiler& compiler, int socket, size_t vocab_size) {
  limit_process(socket);
  Worker(compiler, socket, vocab_size).run();
}

}  // namespace turbomind
