// How events identify a block, in all tiers (engine/events/cache_announcer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace turbomind {

struct PrefixKey;

struct BlockLabel {
  uint64_t hash = 0;
  std::optional<uint64_t> parent;  // the hash of the block before it; of the first block, none
  std::string lora_name;           // empty: none
  std::string extra_keys;          // a JSON list of what identifies it besides its tokens, or empty
};

struct FileLabel : BlockLabel {
  int index = 0;  // of the block in its prefix
  std::vector<int32_t> tokens;
};

// A labeled file was added or removed.
struct FileChange {
  std::shared_ptr<const FileLabel> label;
  bool is_there = false;
};

// Labels the files of blocks. `before` is the label of the preceding block; null: there is none.
class FileLabels {
 public:
  virtual ~FileLabels() = default;

  // The label of a cached content; null: its parents are unknown.
  virtual std::shared_ptr<const FileLabel> label(uint64_t content, std::span<const int32_t> tokens,
                                                 int index) const = 0;
  // The label of the next block of a prefix.
  virtual std::shared_ptr<const FileLabel> label_after(const FileLabel* before, const PrefixKey& prefix) const = 0;
  // The label of a block without adapter, images and salt.
  virtual std::shared_ptr<const FileLabel> label_after(const FileLabel* before,
                                                       std::span<const int32_t> tokens) const = 0;
};

}  // namespace turbomind
