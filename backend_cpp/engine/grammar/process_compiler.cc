#include "engine/grammar/process_compiler.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "engine/grammar/wire.h"

namespace turbomind {

namespace {

constexpr int kLookMilliseconds = 50;  // how often a compilation asks whether it is wanted

}  // namespace

ProcessCompiler::ProcessCompiler(const std::string& program, Vocabulary vocabulary, const SpecialTokens& special,
                                 const std::vector<int32_t>& stop_token_ids, double seconds)
    : tokens_(std::make_shared<const TokenTrie>(std::move(vocabulary))),
      seconds_(seconds),
      host_(program, tokens_->vocabulary(), special, stop_token_ids),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      end_(eventfd(0, EFD_CLOEXEC)) {
  if (!poll_ || !end_) throw Error(ErrorCode::kUnavailable, "response_format: no file descriptors are left");
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(poll_.get(), EPOLL_CTL_ADD, end_.get(), &event);  // number 0
  thread_ = std::thread([this] { run(); });
}

ProcessCompiler::~ProcessCompiler() {
  is_stopping_ = true;
  const uint64_t one = 1;
  if (write(end_.get(), &one, sizeof(one)) < 0) std::terminate();
  thread_.join();
}

std::shared_ptr<const Grammar> ProcessCompiler::compile(const std::string& response_format, const Waiting& waiting) {
  if (std::shared_ptr<const ProcessGrammar> known = find(response_format)) return known;
  waiting.on_begin();
  uint64_t number = 0;
  {
    const std::lock_guard lock(mu_);
    std::erase_if(connections_, [](const auto& entry) { return entry.second.expired(); });
    if (connections_.size() >= kMaxProcesses) {
      throw Error(ErrorCode::kUnavailable, "overloaded: " + std::to_string(kMaxProcesses) +
                                               " response formats are in use already; try again later");
    }
    number = ++last_process_;
  }
  const auto connection =
      std::make_shared<GrammarConnection>(number, host_.start(number), (tokens_->vocabulary().size() + 31) / 32);
  connection->send(wire::Writer(wire::kFormat).put(static_cast<uint32_t>(seconds_ * 1000)).put(response_format).take());
  std::shared_ptr<const ProcessGrammar> grammar;
  try {
    grammar = wait(connection, waiting);
  } catch (const Error&) {
    host_.kill(number);
    throw;
  }
  if (!grammar) {
    host_.kill(number);
    return nullptr;
  }
  listen(connection);
  keep(response_format, grammar);
  return grammar;
}

// One that is kept and works. Throws what one that is kept ended with for its own fault.
std::shared_ptr<const ProcessGrammar> ProcessCompiler::find(const std::string& response_format) {
  const std::lock_guard lock(mu_);
  const auto known =
      std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) { return entry.first == response_format; });
  if (known == kept_.end()) return nullptr;
  if (const std::optional<Error> failure = known->second->connection().failure()) {
    kept_.erase(known);
    if (failure->code() == ErrorCode::kInvalidArgument) throw Error(*failure);
    return nullptr;
  }
  kept_.splice(kept_.begin(), kept_, known);
  return known->second;
}

std::shared_ptr<const ProcessGrammar> ProcessCompiler::wait(const std::shared_ptr<GrammarConnection>& connection,
                                                            const Waiting& waiting) {
  while (true) {
    wire::Type type;
    std::string payload;
    if (!connection->receive(type, payload)) {
      if (is_stopping_) throw Error(ErrorCode::kUnavailable, "the engine is shutting down");
      if (!waiting.is_wanted()) return nullptr;
      const auto events = static_cast<short>(POLLIN | (connection->has_unsent() ? POLLOUT : 0));
      pollfd wanted{connection->socket(), events, 0};
      poll(&wanted, 1, kLookMilliseconds);
      if ((wanted.revents & POLLOUT) != 0) connection->send("");
      continue;
    }
    if (type == wire::kReady) return read_grammar(connection, payload);
    if (type == wire::kSlow && !waiting.may_take_long()) return nullptr;
    if (type == wire::kFailed) {
      wire::Reader reader(payload);
      const bool is_to_blame = reader.get<uint8_t>() != 0;
      throw Error(is_to_blame ? ErrorCode::kInvalidArgument : ErrorCode::kInternal, reader.text());
    }
  }
}

std::shared_ptr<const ProcessGrammar> ProcessCompiler::read_grammar(
    const std::shared_ptr<GrammarConnection>& connection, const std::string& payload) const {
  wire::Reader reader(payload);
  SpecialTokens marks;
  for (auto left = reader.get<uint32_t>(); left > 0; --left) {
    const auto token = reader.get<int32_t>();
    const std::vector<char> text = reader.get<char>(reader.get<uint32_t>());
    marks.emplace_back(token, std::string(text.begin(), text.end()));
  }
  const bool is_printable = reader.get<uint8_t>() != 0;
  const auto bytes = reader.get<uint64_t>();
  const auto nodes = reader.get<uint32_t>();
  const auto lists = reader.get<uint32_t>();
  Automaton::Program program;
  program.nodes = reader.get<Automaton::Node>(nodes);
  program.lists = reader.get<int32_t>(lists);
  program.starts = reader.rest<int32_t>();
  if (!program.starts.empty()) require_known_tokens(program, marks);
  return std::make_shared<const ProcessGrammar>(connection, tokens_, std::move(program), is_printable, std::move(marks),
                                                bytes);
}

// Throws Error for numbers that are no tokens'.
void ProcessCompiler::require_known_tokens(const Automaton::Program& program, const SpecialTokens& marks) const {
  if (!Automaton::is_sound(program)) throw internal_error("response_format: its program is broken");
  const auto size = static_cast<int32_t>(tokens_->vocabulary().size());
  const auto require = [&](int32_t token) {
    if (token >= 0 && token < size) return;
    throw invalid_argument("response_format: there is no token " + std::to_string(token) + "; the last one is " +
                           std::to_string(size - 1));
  };
  for (const auto& [token, text] : marks) require(token);
  for (const Automaton::Node& node : program.nodes) {
    if (node.kind == Automaton::kToken) std::for_each_n(program.lists.begin() + node.a, node.b, require);
  }
}

void ProcessCompiler::keep(const std::string& response_format, const std::shared_ptr<const ProcessGrammar>& grammar) {
  const std::lock_guard lock(mu_);
  kept_.emplace_front(response_format, grammar);
  size_t bytes = 0;
  for (const auto& entry : kept_) bytes += entry.second->bytes();
  while (kept_.size() > 1 && (kept_.size() > kMaxKept || bytes > kKeptBytes)) {
    bytes -= std::min(bytes, kept_.back().second->bytes());
    kept_.pop_back();
  }
}

// ---- the thread that reads ----

void ProcessCompiler::listen(const std::shared_ptr<GrammarConnection>& connection) {
  const std::lock_guard lock(mu_);
  connections_[connection->number()] = connection;
  epoll_event event{};
  // With EPOLLET: whenever something comes, and whenever there is room again.
  event.events = EPOLLIN | EPOLLOUT | EPOLLET;
  event.data.u64 = connection->number();
  epoll_ctl(poll_.get(), EPOLL_CTL_ADD, connection->socket(), &event);
}

void ProcessCompiler::run() {
  std::array<epoll_event, 64> events;
  while (!is_stopping_) {
    const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) serve(events[static_cast<size_t>(i)].data.u64);
  }
}

void ProcessCompiler::serve(uint64_t number) {
  std::shared_ptr<GrammarConnection> connection;
  {
    const std::lock_guard lock(mu_);
    const auto known = connections_.find(number);
    if (known == connections_.end()) return;
    connection = known->second.lock();
    if (!connection) {
      connections_.erase(known);
      return;
    }
  }
  if (connection->serve()) on_state_();
}

}  // namespace turbomind
