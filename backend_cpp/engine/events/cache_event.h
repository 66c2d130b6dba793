// KV cache events for routers, as in vLLM's stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace turbomind {

enum class CacheTier { kDevice, kHost, kDisk };

enum class CacheEventKind { kStored, kRemoved, kCleared };

struct CacheEvent {
  CacheEventKind kind = CacheEventKind::kCleared;
  CacheTier tier = CacheTier::kDevice;
  std::vector<uint64_t> hashes = {};  // of blocks; stored ones follow each other

  // Of stored blocks.
  std::optional<uint64_t> parent = {};  // hash of the block before the first
  std::vector<int32_t> tokens = {};     // of these blocks
  std::string lora_name = {};           // empty: none
  // Of each block, a JSON list of what distinguishes it alongside its tokens, or empty.
  std::vector<std::string> extra_keys = {};
};

class CacheEventSink {
 public:
  enum class State {
    kFollows,        // takes events
    kLost,           // has lost some, and takes none
    kNeedsSnapshot,  // has lost some, and takes everything again
  };

  virtual ~CacheEventSink() = default;
  virtual State state() const = 0;
  // Takes what has happened in a step; in kNeedsSnapshot, what makes the whole content of a cache. Never waits.
  virtual void push(std::vector<CacheEvent>&& events) = 0;
};

}  // namespace turbomind
