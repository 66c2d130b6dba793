#include "engine/session_table.h"

#include <algorithm>
#include <string>

namespace turbomind {

namespace {

constexpr auto kExpiryInterval = std::chrono::seconds(1);

}  // namespace

SessionTable::Session& SessionTable::begin(const SessionParams& params, RequestId request, uint64_t new_scope) {
  const std::string name = "session " + std::to_string(params.id);
  auto it = sessions_.find(params.id);
  if (it != sessions_.end() && it->second.running != 0) {
    throw Error(ErrorCode::kSessionBusy, name + " has a running request; wait for it or stop it");
  }
  if (it == sessions_.end() && !params.start) {
    throw Error(ErrorCode::kUnknownSession, name + " does not exist; begin it with sequence_start");
  }
  if (params.start) {
    it = sessions_.insert_or_assign(params.id, Session{}).first;
    it->second.scope = new_scope;
  }
  Session& session = it->second;
  if (params.step >= 0 && params.step < static_cast<int>(session.tokens.size())) {
    session.tokens.resize(static_cast<size_t>(params.step));
  }
  session.running = request;
  session.last_used = Clock::now();
  return session;
}

SessionTable::Session* SessionTable::find(uint64_t id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

std::vector<SessionTable::Session> SessionTable::expire(Clock::time_point now) {
  std::vector<Session> gone;
  if (now < next_expiry_ && sessions_.size() <= max_sessions_) return gone;
  next_expiry_ = now + kExpiryInterval;
  std::vector<std::pair<Clock::time_point, uint64_t>> idle;
  for (const auto& [id, session] : sessions_) {
    if (session.running == 0) idle.emplace_back(session.last_used, id);
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [last_used, id] : idle) {
    if (now - last_used < idle_limit_ && sessions_.size() <= max_sessions_) break;
    const auto it = sessions_.find(id);
    gone.push_back(std::move(it->second));
    sessions_.erase(it);
  }
  return gone;
}

}  // namespace turbomind
