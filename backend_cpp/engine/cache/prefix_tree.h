// Prefix tree (trie) of cached token blocks, independent of their contents. Each node is a full block, a child of the
// block before it.
//
//   root of scope 0 -- t0..t3 -- t4..t7 -- a8..a11
//                                      \-- b8..b11
//
// Nodes are addressed by content: their tokens and, through the parent, all tokens before. Lookup compares tokens, so a
// hash collision never returns other content; for image embeddings it compares their digests too.
//
// A node may also be a partial block, where a sequence ended within a block. It has no children.
//
// A block may share its first tokens with a node; find_longest() finds the one that shares most.
//
// Nodes are reference counted: a node exists while it is held or has children. The latest deleted ones are remembered,
// to tell why a prefix is not found.
//
// Used by the step thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest/sha256.h"
#include "engine/cache/prefix_key.h"

namespace turbomind {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

// A node whose first tokens are those of a block.
struct SharedBlock {
  NodeId node = kNoNode;
  int tokens = 0;
};

// Where a prefix leaves the longest prefix of its scope that is known, or was lately.
struct PrefixParting {
  std::vector<NodeId> path;                                      // the nodes of whole blocks, which exist
  int tokens = 0;                                                // shared in these blocks and in the next one
  bool goes_on = false;                                          // the known prefix has other tokens there
  std::optional<std::chrono::steady_clock::time_point> deleted;  // when the next block was; `tokens` ends before it
};

// The digest of a prefix, given that of the blocks before the last, and PrefixTree::content_bytes() of the last.
Sha256 digest_after(const Sha256& parent, const std::string& content);

class PrefixTree {
 public:
  // `hash_mask` lets tests force hash collisions.
  explicit PrefixTree(int block_len, uint64_t hash_mask = ~uint64_t{0})
      : block_len_(block_len), hash_mask_(hash_mask) {}

  // Returns the node of block `index` of a prefix, or of the block's first `count` tokens, below `parent` (for block 0,
  // the root). kNoNode: there is none.
  NodeId find(NodeId parent, const PrefixKey& prefix, int index, int count = kWhole) const;
  NodeId find_root(const PrefixScope& scope) const;
  // The same, creating a missing node. The caller must hold a new node before it lets go of any other.
  NodeId get(NodeId parent, const PrefixKey& prefix, int index, int count = kWhole);
  NodeId get_root(const PrefixScope& scope);
  // The nodes of the whole blocks of a prefix's first `limit` tokens, from the first on, as far as they exist.
  std::vector<NodeId> path_of(const PrefixKey& prefix, int limit) const;
  // The child of `parent` that shares the most leading tokens with block `index` of a prefix, at most `count`, among
  // those for which `is_usable` holds. What is shared ends at the first image. Compares the latest kMaxCompared
  // children.
  SharedBlock find_longest(NodeId parent, const PrefixKey& prefix, int index, int count,
                           const std::function<bool(NodeId)>& is_usable) const;
  // Of the first `limit` tokens of a prefix.
  PrefixParting parting(const PrefixKey& prefix, int limit) const;

  void ref(NodeId node) { ++at(node).uses; }
  // Deletes the node when it is no longer held and has no children, and then its parents likewise.
  void unref(NodeId node);

  NodeId parent(NodeId node) const { return at(node).parent; }
  bool is_part(NodeId node) const { return !is_root(node) && at(node).tokens.size() < static_cast<size_t>(block_len_); }
  bool is_root(NodeId node) const { return at(node).parent == kNoNode; }
  // A unique number, higher than the parent's.
  uint64_t number(NodeId node) const { return at(node).number; }
  std::span<const int32_t> tokens(NodeId node) const { return at(node).tokens; }
  const PrefixScope& scope(NodeId node) const { return at(node).scope; }
  int depth(NodeId node) const { return at(node).depth; }  // distance from the root, less one
  // The content of a node in a portable form: everything that determines a block except the blocks before it; and a
  // digest of the whole prefix, given the digest of the root's scope.
  std::string content_bytes(NodeId node) const { return bytes_of({at(node).tokens, at(node).images}); }
  std::string content_bytes(const PrefixKey& prefix, int index, int count) const {
    return bytes_of(content_of(prefix, index, count));
  }
  const Sha256& digest(NodeId node, const Sha256& root);
  // Adds the descendants of nodes to them.
  std::vector<NodeId> subtrees(std::vector<NodeId> nodes) const;
  std::vector<NodeId> of_namespace(uint64_t cache_namespace) const;

  // Upper bound of node ids.
  size_t id_bound() const { return nodes_.size(); }
  size_t node_count() const { return nodes_.size() - unused_.size(); }
  // Throws Error(kInternal) if nodes, links and index are inconsistent.
  void check_invariants() const;

 private:
  static constexpr int kWhole = -1;
  static constexpr int kMaxCompared = 256;
  static constexpr size_t kMaxDeleted = 4096;

  // Part of an image in a block: `count` tokens from position `at` are rows `first_token`, ... of its `rows`.
  struct ImagePart {
    int at = 0;
    int count = 0;
    int first_token = 0;
    int rows = 0;
    ImageGrid grid{};
    ContentDigest digest{};
    bool operator==(const ImagePart&) const = default;
  };
  struct Content {
    std::span<const int32_t> tokens;
    std::vector<ImagePart> images;
  };
  struct Node {
    uint64_t number = 0;  // 0: unused
    uint64_t key = 0;     // key in the index, or in the roots
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId next = kNoNode;  // of the parent's children
    NodeId previous = kNoNode;
    int uses = 0;  // references of holders and children
    PrefixScope scope;
    std::vector<int32_t> tokens;  // [block_len], or fewer; none of a root
    std::vector<ImagePart> images;
    int depth = 0;
    std::optional<Sha256> digest;  // computed on demand
  };

  struct Deleted {
    PrefixScope scope;
    uint64_t parent_key = 0;
    uint64_t key = 0;
    std::vector<int32_t> tokens;
    int before_images = 0;  // leading tokens that are no image's
    std::chrono::steady_clock::time_point time;
  };

  Node& at(NodeId node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(NodeId node) const { return nodes_[static_cast<size_t>(node)]; }
  Content content_of(const PrefixKey& prefix, int index, int count) const;
  static std::string bytes_of(const Content& content);
  // Hashes of a scope and of all content up to a node's end.
  static uint64_t key_of(const PrefixScope& scope);
  uint64_t key_of(NodeId node) const { return is_root(node) ? key_of(at(node).scope) : at(node).key; }
  uint64_t key_of(uint64_t parent_key, const Content& content) const;
  NodeId find(NodeId parent, const Content& content, uint64_t key) const;
  void remember(Node& ending);
  int part_from_deleted(const PrefixScope& scope, uint64_t parent_key, const Content& next, int shared,
                        PrefixParting& parting) const;
  // A node in `index`, at `key`.
  NodeId make(std::unordered_multimap<uint64_t, NodeId>& index, uint64_t key);
  static void erase(std::unordered_multimap<uint64_t, NodeId>& index, uint64_t key, NodeId node);

  int block_len_;
  uint64_t hash_mask_;
  std::vector<Node> nodes_;
  std::vector<NodeId> unused_;
  std::unordered_multimap<uint64_t, NodeId> index_;  // by key_of()
  std::unordered_multimap<uint64_t, NodeId> roots_;  // by namespace
  uint64_t next_number_ = 1;
  std::vector<Deleted> deleted_;  // a ring
  size_t next_deleted_ = 0;
};

}  // namespace turbomind
