// What events call a block, in all tiers (engine/events/cache_announcer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace turbomind {

struct BlockLabel {
  uint64_t hash = 0;
  std::optional<uint64_t> parent;  // the hash of the block before it; of the first block, none
  std::string lora_name;           // empty: none
  std::string extra_keys;          // a JSON list of what distinguishes it alongside its tokens, or empty
};

struct FileLabel : BlockLabel {
  int index = 0;  // of the block in its prefix
  std::vector<int32_t> tokens;
};

// A file with a label is there from now on, or is gone.
struct FileChange {
  std::shared_ptr<const FileLabel> label;
  bool is_there = false;
};

}  // namespace turbomind
