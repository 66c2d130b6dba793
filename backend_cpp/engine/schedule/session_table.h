// Conversations kept between requests, as token ids; their keys and values are in the block cache as long as there is
// room.
//
// A turn is prepared, which changes nothing and can fail; then it begins, which cannot; then it finishes. So a request
// that is refused leaves its session as it was, whatever it would have rolled back or replaced.
//
// Used by the step thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "engine/schedule/block_cache.h"

namespace turbomind {

struct SessionLimits {
  std::chrono::seconds idle{3600};      // sessions unused for so long are forgotten
  size_t count = 4096;                  // of idle sessions beyond, the least recently used are
  int session_len = 2048;               // tokens of history, input and one of a response
  size_t embedding_bytes = ~size_t{0};  // of idle sessions whose embeddings take more, the least recently used go
};

// The low-rank adapter that a session belongs to: that of its first turn.
struct SessionOwner {
  uint64_t adapter = 0;  // 0: none
  std::string name;
};

class SessionTable {
 public:
  // A session that goes gives up its blocks, unless others may use them (`shares_blocks`).
  SessionTable(const SessionLimits& limits, BlockCache& blocks, bool shares_blocks)
      : limits_(limits), blocks_(blocks), shares_blocks_(shares_blocks) {}

  // What a turn would begin with. Valid until the table changes.
  struct Turn {
    std::span<const int32_t> history;        // the session's tokens, rolled back to params.step (beyond its end: all)
    std::vector<EmbeddingRange> embeddings;  // of the history
    uint64_t scope = 0;                      // of its blocks
  };
  // `new_scope` is for a session that begins, or whose adapter was loaded again. Throws Error kUnknownSession,
  // kSessionBusy, kTooLong, and kInvalidArgument for a turn without a token and for one with another adapter.
  Turn prepare(const SessionParams& params, size_t input_len, uint64_t new_scope, const SessionOwner& owner = {}) const;

  // Begins a prepared turn: creates or replaces the session, which is busy from now on; finish() brings its new tokens.
  void begin(const SessionParams& params, RequestId request, uint64_t scope, const SessionOwner& owner = {});
  // The turn has ended: the session holds `tokens`, of which some have their own embeddings, or goes, if that was
  // asked. Nothing, if it is not the request's.
  void finish(const SessionParams& params, RequestId request, std::vector<int32_t> tokens,
              std::vector<EmbeddingRange> embeddings = {});

  // For a request that only stops or ends a session: the running request that is to be cancelled first; 0: none.
  // Throws Error kUnknownSession, kSessionIdle (nothing to stop) or kSessionBusy (not asked to stop).
  RequestId check_control(const SessionParams& params) const;
  // Forgets a session and its blocks.
  void erase(uint64_t id);
  // Forgets what is too old or too much.
  void expire(Clock::time_point now);

  size_t size() const { return sessions_.size(); }
  int busy_count() const;

 private:
  struct Session {
    std::vector<int32_t> tokens;
    std::vector<EmbeddingRange> embeddings;  // needed again when blocks are
    RequestId running = 0;                   // the request that is using the session; 0: none
    uint64_t scope = 0;                      // of its blocks
    SessionOwner owner;
    Clock::time_point last_used;
  };

  const Session* find(uint64_t id) const;
  void release_blocks(const Session& session);

  SessionLimits limits_;
  BlockCache& blocks_;
  bool shares_blocks_;
  std::unordered_map<uint64_t, Session> sessions_;
  size_t embedding_bytes_ = 0;  // of all sessions
  Clock::time_point next_expiry_{};
};

}  // namespace turbomind
