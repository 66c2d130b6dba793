// Conversations kept between requests, as token ids; their keys and values are in the block cache as long as there is
// room.
//
// Used by the step thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace turbomind {

class SessionTable {
 public:
  struct Session {
    std::vector<int32_t> tokens;
    RequestId running = 0;  // the request that is using the session; 0: none
    uint64_t scope = 0;     // of its blocks
    Clock::time_point last_used;
  };

  // Sessions unused for `idle_limit` are forgotten, and the least recently used beyond `max_sessions`.
  SessionTable(std::chrono::seconds idle_limit, size_t max_sessions)
      : idle_limit_(idle_limit), max_sessions_(max_sessions) {}

  // Begins a turn: creates, replaces or finds the session and rolls it back to params.step (beyond its end: no effect).
  // `new_scope` is for a session that begins. Throws Error kUnknownSession or kSessionBusy.
  Session& begin(const SessionParams& params, RequestId request, uint64_t new_scope);

  // nullptr when there is none.
  Session* find(uint64_t id);
  void erase(uint64_t id) { sessions_.erase(id); }
  size_t size() const { return sessions_.size(); }

  // Forgets what is too old or too much, and returns it so that its blocks can be forgotten too.
  std::vector<Session> expire(Clock::time_point now);

 private:
  std::chrono::seconds idle_limit_;
  size_t max_sessions_;
  std::unordered_map<uint64_t, Session> sessions_;
  Clock::time_point next_expiry_{};
};

}  // namespace turbomind
