// Configuration of an engine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/speculative/speculative_config.h"
#include "model/cache_plan.h"

namespace turbomind {

// Disk tier of the KV cache.
struct DiskTierConfig {
  std::string directory;  // empty: there is no such tier
  uint64_t bytes = 0;
  std::string fingerprint;  // of the model and of all settings that keys, values and states depend on
  // How often uses are recorded in files, and files that others removed are looked for.
  std::chrono::milliseconds poll_interval = std::chrono::seconds(5);
};

struct EngineConfig {
  int session_len = 2048;  // max tokens of prompt and response together
  int max_batch_size = 64;
  int max_step_tokens = 512;  // tokens of one step
  int block_len = 64;
  CachePlan plan;  // of the runners' groups; empty: built from their cache groups
  int page_count = 1;
  int host_page_count = 0;    // of the cache's second tier, in the host's memory
  DiskTierConfig disk;        // of its third tier, in files
  int snapshot_interval = 0;  // tokens of a prompt between snapshots of its state; 0: at anchors alone
  bool enable_prefix_caching = false;
  int max_waiting = 4096;  // requests beyond are refused as "overloaded"
  std::chrono::seconds session_idle_limit{3600};
  std::chrono::milliseconds step_timeout{300'000};  // an engine whose step takes longer hangs
  size_t max_sessions = 4096;
  // Bound of rows in place of token embeddings, of requests until their last response has ended, and of sessions.
  // A request beyond is refused as "overloaded"; idle sessions may hold half of it.
  size_t embedding_bytes = size_t{1} << 30;
  size_t adapter_bytes = size_t{1} << 30;  // what low-rank adapters in memory may take
  SpeculativeConfig speculation;
  std::vector<int32_t> eos_token_ids;
  // Whether the engine checks itself whenever it goes idle, and ends the process if what it keeps does not add up. For
  // tests; LMDEPLOY_CHECK_INVARIANTS in the environment turns it on for an engine that is loaded.
  bool checks_invariants = false;
};

}  // namespace turbomind
