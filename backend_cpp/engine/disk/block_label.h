// What events call a block, in all tiers (engine/events/cache_announcer.h).
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

// Labels the files of blocks. `before` is the label of the preceding block; null: there is none.
class FileLabels {
 public:
  virtual ~FileLabels() = default;

  // Of a content of the cache; null: the cache does not know which blocks precede it.
  virtual std::shared_ptr<const FileLabel> label(uint64_t content, std::span<const int32_t> tokens,
                                                 int index) const = 0;
  // Of the next block of a prefix.
  virtual std::shared_ptr<const FileLabel> label_after(const FileLabel* before, const PrefixKey& prefix) const = 0;
  // Of a block of tokens alone: without adapter, images and salt.
  virtual std::shared_ptr<const FileLabel> label_after(const FileLabel* before,
                                                       std::span<const int32_t> tokens) const = 0;
};

}  // namespace turbomind
