// Events as text, a JSON object a line: what lmdeploy/kv_events/publisher.py reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/events/cache_event.h"

namespace turbomind {

// The events of a step.
struct CacheEventBatch {
  uint64_t sequence = 0;
  std::vector<CacheEvent> events;
};

std::string event_line(const CacheEventBatch& batch, int block_len);

}  // namespace turbomind
