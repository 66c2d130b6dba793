// Snapshots: copies of a sequence's memory after exactly the tokens up to a node's end.
//
// A group of recurrent states has no chain of blocks: a node has a copy of the state. A snapshot between two block
// boundaries also has copies of the other groups' partial block, all attached to a node for a part of a block.
//
// Snapshots have at most a share of the arena; those that were never reused are evicted first.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/cache_contents.h"

namespace turbomind {

struct SnapshotLimits {
  int pages = 0;       // of all snapshots; by default a fourth of the arena
  int interval = 0;    // in prompt tokens at which they are made; 0: at anchors only (engine/cache/sequence_memory.h)
  int min_copied = 8;  // tokens that a block must share with a prefix to be worth a copy
};

class Snapshots {
 public:
  Snapshots(BlockPool& pool, EvictionOrder& order, CacheContents& contents);

  // Attaches a copy of a sequence's block to the node at whose end the sequence is. False: no room. `is_rolling`: the
  // sequence's next snapshot replaces it, unless another sequence made it permanent.
  bool make(NodeId node, int32_t block, bool is_rolling = false);
  // Attaches an empty block, to which the caller writes. kNoBlock: no room.
  int32_t add(NodeId node, int group, bool is_rolling = false);
  // Copies stored content to a sequence's own block of the same group, and marks it as used.
  void use_copy(int32_t stored, int32_t block);
  // Notes that the sequence that made or used a node's snapshots has made later ones.
  void pass(NodeId node);
  // Makes a rolling snapshot permanent.
  void commit(NodeId node, int group);
  // Frees a rolling snapshot that was never reused.
  void clear_rolling(NodeId node, int group);

  SnapshotLimits limits;

 private:
  BlockPool& pool_;
  EvictionOrder& order_;
  CacheContents& contents_;
  std::vector<bool> is_rolling_;  // by block
};

}  // namespace turbomind
