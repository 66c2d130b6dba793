#include "engine/schedule/session_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr auto kExpiryInterval = std::chrono::seconds(1);

std::string name_of(uint64_t id) {
  return "session " + std::to_string(id);
}

std::string described(const SessionOwner& owner) {
  return owner.adapter == 0 ? "no adapter" : "the adapter " + owner.name;
}

size_t bytes_of(const std::vector<EmbeddingRange>& embeddings) {
  size_t bytes = 0;
  for (const EmbeddingRange& range : embeddings) bytes += range.rows->data.size();
  return bytes;
}

// Part of `embeddings` in the first `tokens` tokens.
std::vector<EmbeddingRange> first_of(const std::vector<EmbeddingRange>& embeddings, size_t tokens) {
  const int end = static_cast<int>(tokens);
  const std::span<const EmbeddingRange> kept = ranges_within(embeddings, 0, end);
  std::vector<EmbeddingRange> result(kept.begin(), kept.end());
  if (!result.empty()) result.back().count = std::min(result.back().count, end - result.back().begin);
  return result;
}

}  // namespace

SessionTable::Turn SessionTable::prepare(const SessionParams& params, size_t input_len,
                                         const SessionOwner& owner) const {
  const Session* session = find(params.id);
  if (session != nullptr && session->running != 0) {
    throw Error(ErrorCode::kSessionBusy, name_of(params.id) + " has a running request; wait for it or stop it");
  }
  if (session == nullptr && !params.start) {
    throw Error(ErrorCode::kUnknownSession, name_of(params.id) + " does not exist; begin it with sequence_start");
  }
  if (!params.start && session->owner.name != owner.name) {
    throw invalid_argument(name_of(params.id) + " began with " + described(session->owner) + ", got a turn with " +
                           described(owner) + "; name the same in each turn, or begin it again with sequence_start");
  }
  Turn turn;
  if (!params.start) {
    const size_t limit = params.step < 0 ? session->tokens.size() : static_cast<size_t>(params.step);
    turn.history = std::span(session->tokens).first(std::min(limit, session->tokens.size()));
    turn.embeddings = first_of(session->embeddings, turn.history.size());
    if (session->owner.adapter == owner.adapter) turn.scope = session->scope;
  }
  const size_t total = turn.history.size() + input_len;
  if (total == 0) throw invalid_argument("input_ids must hold at least one token");
  if (total + 1 > static_cast<size_t>(limits_.session_len)) {
    throw Error(ErrorCode::kTooLong, "history and prompt must be shorter than the session length of " +
                                         std::to_string(limits_.session_len) + " tokens, got " + std::to_string(total));
  }
  return turn;
}

void SessionTable::begin(const SessionParams& params, RequestId request, uint64_t scope, const SessionOwner& owner) {
  if (params.start) erase(params.id);
  Session& session = sessions_[params.id];
  session.scope = scope;
  session.owner = owner;
  session.running = request;
  session.last_used = Clock::now();
}

void SessionTable::finish(const SessionParams& params, RequestId request, std::vector<int32_t> tokens,
                          std::vector<EmbeddingRange> embeddings) {
  const auto it = sessions_.find(params.id);
  if (it == sessions_.end() || it->second.running != request) return;
  embedding_bytes_ -= bytes_of(it->second.embeddings);
  if (params.end) {
    sessions_.erase(it);  // the request's blocks went with it
    return;
  }
  embedding_bytes_ += bytes_of(embeddings);
  it->second.embeddings = std::move(embeddings);
  it->second.running = 0;
  it->second.last_used = Clock::now();
  it->second.tokens = std::move(tokens);
}

RequestId SessionTable::check_control(const SessionParams& params) const {
  const Session* session = find(params.id);
  if (session == nullptr) throw Error(ErrorCode::kUnknownSession, name_of(params.id) + " does not exist");
  if (params.stop && session->running == 0 && !params.end) {
    throw Error(ErrorCode::kSessionIdle, name_of(params.id) + " has no running request to stop");
  }
  if (!params.stop && session->running != 0) {
    throw Error(ErrorCode::kSessionBusy, name_of(params.id) + " has a running request; stop it first");
  }
  return session->running;
}

void SessionTable::erase(uint64_t id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  if (!shares_blocks_ && it->second.scope) blocks_.contents().evict_namespace(*it->second.scope);
  embedding_bytes_ -= bytes_of(it->second.embeddings);
  sessions_.erase(it);
}

void SessionTable::expire(Clock::time_point now) {
  const auto is_too_much = [this] {
    return sessions_.size() > limits_.count || embedding_bytes_ > limits_.embedding_bytes;
  };
  if (now < next_expiry_ && !is_too_much()) return;
  next_expiry_ = now + kExpiryInterval;
  std::vector<std::pair<Clock::time_point, uint64_t>> idle;
  for (const auto& [id, session] : sessions_) {
    if (session.running == 0) idle.emplace_back(session.last_used, id);
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [last_used, id] : idle) {
    if (now - last_used < limits_.idle && !is_too_much()) break;
    erase(id);
  }
}

int SessionTable::busy_count() const {
  return static_cast<int>(
      std::ranges::count_if(sessions_, [](const auto& entry) { return entry.second.running != 0; }));
}

SessionTable::Sessions SessionTable::take() {
  embedding_bytes_ = 0;
  return std::exchange(sessions_, {});
}

void SessionTable::add(Sessions sessions) {
  for (auto& [id, session] : sessions) {
    session.scope.reset();
    embedding_bytes_ += bytes_of(session.embeddings);
  }
  sessions_.merge(sessions);
}

const SessionTable::Session* SessionTable::find(uint64_t id) const {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

}  // namespace turbomind
