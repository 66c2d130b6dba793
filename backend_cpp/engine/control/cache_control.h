// What administrators ask of the cache, and what they get.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/stats.h"

namespace turbomind {

struct CacheReport {
  EngineStats stats;
  size_t page_bytes = 0;
  bool has_files = false;
  int pinned_prompts = 0;
  int pinned_pages = 0;  // that are in memory now
  int most_pinned_pages = 0;
  int tokens = 0;  // of the prompt that was pinned: how many of them are kept
};

struct CacheControl {
  enum class Action {
    kReport,
    kDropMemory,  // what no request uses, and all pins
    kDropFiles,   // in the background
    kPin,         // keep what the cache has of a prompt
    kUnpin,
  };
  Action action = Action::kReport;
  // Of a prompt that is pinned or unpinned.
  std::vector<int32_t> tokens;
  std::string salt;
  std::string lora_name;    // empty: no adapter
  uint64_t adapter_id = 0;  // filled in by the engine
  // Called once, on the step thread; the error is null where there was none.
  std::function<void(const CacheReport&, const Error*)> on_done;
};

}  // namespace turbomind
