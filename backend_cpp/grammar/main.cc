// The library turbomind_grammar: makes a Python process (lmdeploy/grammars/__main__.py) one that reads response formats
// for the engine that has started it, one at a time. It ends when the engine closes its socket, for whatever reason.
// Its work is bounded:
//
//   processor time   of a format, as the engine says
//   memory           by a constant, alongside what it has
//   priority         low; of a format that takes long, idle
//
// A bound that is broken ends the process, after it has said which.
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "engine/grammar/wire.h"
#include "grammar/xgrammar.h"

namespace turbomind {

namespace {

constexpr int kPriority = 10;
constexpr int kSlowPriority = 19;
constexpr long kQuickMs = 100;  // of processor time
constexpr size_t kMemory = size_t{1} << 30;

// ---- the clock: what the signal handler does when time is up ----

// Work under the clock.
struct Timed {
  volatile std::sig_atomic_t is_running = 0;
  volatile pid_t thread = 0;  // that reads
  long left_ms = 0;           // after the time that is quick
  bool is_slow = false;       // that time is over
  std::string slow_frame;     // what the engine is given then
  std::string failed_frame;   // what it is given when no time is left
};
Timed timed;

void set_timer(long milliseconds) {
  itimerval timer{};
  timer.it_value.tv_sec = milliseconds / 1000;
  timer.it_value.tv_usec = milliseconds % 1000 * 1000;
  setitimer(ITIMER_PROF, &timer, nullptr);
}

void send_all(const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(wire::kSocket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(0);  // nobody listens any more
    sent += static_cast<size_t>(count);
  }
}

// Long work continues when nobody else would run: its thread ends with it.
void make_way() {
  const sched_param none{};
  if (sched_setscheduler(timed.thread, SCHED_IDLE, &none) == 0) return;
  setpriority(PRIO_PROCESS, static_cast<id_t>(timed.thread), kSlowPriority);
}

// Runs between any two instructions of the grammar's code: calls what a signal handler may call, and no more. Nothing
// else is being sent meanwhile.
void on_time_up(int) {
  if (timed.is_running == 0) return;
  if (timed.is_slow || timed.left_ms <= 0) {
    send_all(timed.failed_frame);
    _exit(1);
  }
  timed.is_slow = true;
  make_way();
  send_all(timed.slow_frame);
  set_timer(timed.left_ms);
}

// The engine has said something, or is gone.
void on_socket(int) {
  char byte;
  if (recv(wire::kSocket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) _exit(0);
}

std::string failed(bool is_to_blame, const std::string& text) {
  return wire::Writer(wire::kFailed).put(static_cast<uint8_t>(is_to_blame)).put(text).take();
}

// Bounds the processor time of what happens while it lives.
class TimeLimit {
 public:
  TimeLimit(long limit_ms, const std::string& failure) {
    timed.left_ms = limit_ms - kQuickMs;
    timed.is_slow = false;
    timed.failed_frame = failed(true, failure);
    timed.is_running = 1;
    set_timer(std::min(kQuickMs, limit_ms));
  }
  ~TimeLimit() {
    timed.is_running = 0;
    set_timer(0);
  }
  TimeLimit(const TimeLimit&) = delete;
};

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

void limit_process() {
  timed.slow_frame = wire::Writer(wire::kSlow).take();
  struct sigaction action{};
  action.sa_handler = on_time_up;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  action.sa_handler = on_socket;
  sigaction(SIGIO, &action, nullptr);
  fcntl(wire::kSocket, F_SETOWN, getpid());
  fcntl(wire::kSocket, F_SETFL, O_ASYNC);
  setpriority(PRIO_PROCESS, 0, std::max(getpriority(PRIO_PROCESS, 0), kPriority));
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  limit_memory();
}

// ---- the work ----

// The next frame that the engine sends, of that type.
std::string receive(wire::Type wanted) {
  static std::string received;
  wire::Type type;
  std::string payload;
  char room[1 << 14];
  while (!wire::take_frame(received, type, payload)) {
    const ssize_t count = recv(wire::kSocket, room, sizeof(room), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(0);
    received.append(room, static_cast<size_t>(count));
  }
  if (type != wanted) throw internal_error("a frame of another type was expected");
  return payload;
}

// Does some work on a thread whose priority may fall without that of what comes later.
template <class Work>
void run_on_own_thread(const Work& work) {
  std::exception_ptr failure;
  std::thread thread([&] {
    timed.thread = gettid();
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

// Returns the frame of a format that was read.
std::string read(const FormatReader& reader, const std::string& payload) {
  wire::Reader order(payload);
  const auto limit_ms = static_cast<long>(order.get<uint32_t>());
  const std::string text = order.rest();
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", static_cast<double>(limit_ms) / 1000);
  Format format;
  {
    const TimeLimit clock(
        limit_ms, std::string("response_format: compiling it takes more than grammar_compile_seconds, ") + seconds +
                      " s of processor time; make it smaller, with shorter patterns and fewer repetitions");
    run_on_own_thread([&] { format = reader(text); });
  }
  return wire::Writer(wire::kReady)
      .put_special_tokens(format.marks)
      .put_list(format.program.nodes)
      .put_list(format.program.lists)
      .put_list(format.program.starts)
      .put_list(format.program.least)
      .take();
}

// Callbacks of lmdeploy/grammars. Texts live until the next call; null: there is no memory left.
struct Translator {
  // Returns a JSON object with `format`, that of the user as xgrammar is to read it, or `refusal`.
  const char* (*translate)(const char* format, size_t size);
  // Returns a message about that format as one about the user's.
  const char* (*explain)(const char* message);
};

std::string text_or_throw(const char* text) {
  if (text == nullptr) throw std::bad_alloc();
  return text;
}

FormatReader load(Translator translator) {
  try {
    static const wire::Vocabulary vocabulary = wire::read_vocabulary(receive(wire::kVocabulary));
    const FormatReader read_translated = load_xgrammar(vocabulary);
    const FormatReader reader = [=](const std::string& text) {
      const Json found = Json::parse(text_or_throw(translator.translate(text.data(), text.size())));
      const Json* format = found.find("format");
      if (format == nullptr) throw invalid_argument("response_format: " + found.at("refusal").as_string());
      try {
        return read_translated(format->dump());
      } catch (const Error& error) {
        throw Error(error.code(), text_or_throw(translator.explain(error.what())));
      }
    };
    reader(R"({"type":"json_object"})");  // the first is the slowest
    return reader;
  } catch (const std::exception& error) {
    const std::string why = std::string("response_format is not supported here: ") + error.what();
    return [why](const std::string&) -> Format { throw internal_error(why); };
  }
}

}  // namespace

}  // namespace turbomind

extern "C" __attribute__((visibility("default"))) void turbomind_grammar_run(
    decltype(turbomind::Translator::translate) translate, decltype(turbomind::Translator::explain) explain) {
  using namespace turbomind;
  prctl(PR_SET_NAME, "turbomind_grammar");
  mallopt(M_ARENA_MAX, 1);  // the thread that reads would map another, which the limit of memory counts
  syscall(SYS_close_range, wire::kSocket + 1, ~0U, 0);  // what the engine's process had open
  signal(SIGINT, SIG_IGN);                              // Ctrl-C is the engine's affair
  signal(SIGPIPE, SIG_IGN);
  const FormatReader reader = load({translate, explain});
  limit_process();
  while (true) {
    const std::string payload = receive(wire::kFormat);
    try {
      send_all(read(reader, payload));
    } catch (const Error& error) {
      send_all(failed(error.code() == ErrorCode::kInvalidArgument, error.what()));
    } catch (const std::bad_alloc&) {
      send_all(failed(true, "response_format: it takes more than " + std::to_string(kMemory >> 20) + " MiB of memory"));
      _exit(1);
    } catch (const std::exception& error) {
      send_all(failed(false, std::string("response_format: ") + error.what()));
    }
  }
}
