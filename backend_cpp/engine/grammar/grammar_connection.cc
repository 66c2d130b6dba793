#include "engine/grammar/grammar_connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace turbomind {

namespace {

constexpr size_t kMaxUnsent = size_t{16} << 20;

Error ended() {
  return {ErrorCode::kUnavailable, "the process that follows the response format ended; try again"};
}

}  // namespace

void GrammarConnection::send(std::string frame) {
  const std::lock_guard lock(mu_);
  if (failure_) return;
  unsent_ += frame;
  flush();
  if (unsent_.size() > kMaxUnsent) failure_ = ended();
}

void GrammarConnection::flush() {
  size_t sent = 0;
  while (sent < unsent_.size()) {
    const ssize_t count =
        ::send(socket_.get(), unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;  // later; that the process has ended is seen by reading
    sent += static_cast<size_t>(count);
  }
  unsent_.erase(0, sent);
}

uint32_t GrammarConnection::expect(std::shared_ptr<AskedState> state) {
  const std::lock_guard lock(mu_);
  while (++last_question_ == 0 || questions_.contains(last_question_)) continue;
  questions_.emplace(last_question_, std::move(state));
  return last_question_;
}

std::optional<Error> GrammarConnection::failure() const {
  const std::lock_guard lock(mu_);
  return failure_;
}

void GrammarConnection::fail(const Error& error) {
  const std::lock_guard lock(mu_);
  if (!failure_) failure_ = error;
  unsent_.clear();
  questions_.clear();
}

bool GrammarConnection::has_unsent() const {
  const std::lock_guard lock(mu_);
  return !unsent_.empty();
}

void GrammarConnection::read_socket() {
  std::array<char, 1 << 16> room;
  while (true) {
    const ssize_t count = recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (count > 0) {
      received_.append(room.data(), static_cast<size_t>(count));
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      throw ended();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

bool GrammarConnection::receive(wire::Type& type, std::string& payload) {
  if (wire::take_frame(received_, type, payload)) return true;
  try {
    read_socket();
  } catch (const Error&) {
    // What was said last comes before the end.
    if (!wire::take_frame(received_, type, payload)) throw;
    return true;
  }
  return wire::take_frame(received_, type, payload);
}

bool GrammarConnection::serve() {
  bool has_changed = false;
  try {
    wire::Type type;
    for (std::string payload; receive(type, payload);) {
      has_changed = true;
      if (type == wire::kState) {
        take_state(payload);
      } else if (type == wire::kFailed) {
        wire::Reader reader(payload);
        const bool is_to_blame = reader.get<uint8_t>() != 0;
        const std::string text = reader.text();
        throw Error(is_to_blame ? ErrorCode::kInvalidArgument : ErrorCode::kInternal, text);
      }
    }
    const std::lock_guard lock(mu_);
    flush();
  } catch (const Error& error) {
    fail(error);
    return true;
  }
  return has_changed;
}

void GrammarConnection::take_state(const std::string& payload) {
  wire::Reader reader(payload);
  const auto question = reader.get<uint32_t>();
  std::shared_ptr<AskedState> asked;
  {
    const std::lock_guard lock(mu_);
    const auto known = questions_.find(question);
    if (known == questions_.end()) return;
    asked = std::move(known->second);
    questions_.erase(known);
  }
  asked->state.is_finished = reader.get<uint8_t>() != 0;
  if (!asked->state.is_finished) {
    asked->state.mask = reader.get<int32_t>(mask_words_);
    asked->state.only_token = only_token(asked->state.mask);
  }
  asked->is_known.store(true, std::memory_order_release);
}

}  // namespace turbomind
