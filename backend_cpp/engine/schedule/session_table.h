// Sessions: conversations kept between requests as token ids. Their keys and values stay in the block cache while there
// is room.
//
// A turn is prepared, which changes nothing and can fail; then it begins, which cannot fail; then it finishes. So a
// refused request leaves its session unchanged.
//
// Used by the step thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cache/block_cache.h"
#include "engine/request.h"

namespace turbomind {

struct SessionLimits {
  std::chrono::seconds idle{3600};      // unused sessions are removed after this
  size_t count = 4096;                  // of idle sessions; LRU beyond
  int session_len = 2048;               // tokens: history, input and at least one of the response
  size_t embedding_bytes = ~size_t{0};  // of idle sessions' embeddings; LRU beyond
};

// The LoRA adapter of a session: that of its first turn.
struct SessionOwner {
  uint64_t adapter = 0;  // 0: none
  std::string name;
};

class SessionTable {
 public:
  // A removed session frees its blocks, unless other requests may match them (`shares_blocks`).
  SessionTable(const SessionLimits& limits, BlockCache& blocks, bool shares_blocks)
      : limits_(limits), blocks_(blocks), shares_blocks_(shares_blocks) {}

  // The state that a turn begins with. Valid until the table changes.
  struct Turn {
    std::span<const int32_t> history;        // the session's tokens, rolled back to params.step (beyond its end: all)
    std::vector<EmbeddingRange> embeddings;  // of the history
    std::optional<uint64_t> scope;           // of its blocks; none: a new session, or its adapter was loaded again
  };
  // Throws Error kUnknownSession, kSessionBusy, kTooLong, and kInvalidArgument for a turn without a token and for one
  // with another adapter.
  Turn prepare(const SessionParams& params, size_t input_len, const SessionOwner& owner = {}) const;

  // Begins a prepared turn: creates or replaces the session, which is busy until finish().
  void begin(const SessionParams& params, RequestId request, uint64_t scope, const SessionOwner& owner = {});
  // Ends the turn: stores `tokens` and their embeddings, or removes the session if the request asked for that. Does
  // nothing if the request does not own the session.
  void finish(const SessionParams& params, RequestId request, std::vector<int32_t> tokens,
              std::vector<EmbeddingRange> embeddings = {});

  // For a request that stops or ends a session: the running request to cancel first; 0: none.
  // Throws Error kUnknownSession, kSessionIdle (nothing to stop) or kSessionBusy (not asked to stop).
  RequestId check_control(const SessionParams& params) const;
  // Removes a session and frees its blocks.
  void erase(uint64_t id);
  // Removes sessions beyond the limits.
  void expire(Clock::time_point now);

  size_t size() const { return sessions_.size(); }
  int busy_count() const;

  struct Session {
    std::vector<int32_t> tokens;
    std::vector<EmbeddingRange> embeddings;  // for recomputation
    RequestId running = 0;                   // the request that uses the session; 0: none
    std::optional<uint64_t> scope;           // of its blocks; none: another table's session
    SessionOwner owner;
    Clock::time_point last_used;
  };
  using Sessions = std::unordered_map<uint64_t, Session>;
  // Hands over all sessions, none of which may be busy, to the table of another engine of the same model.
  Sessions take();
  void add(Sessions sessions);

 private:
  const Session* find(uint64_t id) const;

  SessionLimits limits_;
  BlockCache& blocks_;
  bool shares_blocks_;
  Sessions sessions_;
  size_t embedding_bytes_ = 0;  // of all sessions
  Clock::time_point next_expiry_{};
};

}  // namespace turbomind
