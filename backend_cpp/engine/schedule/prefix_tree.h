// The prefixes that the cache knows, whatever of them is stored: a tree whose nodes are full blocks of tokens, each
// after the one it continues.
//
//   root of scope 0 -- t0..t3 -- t4..t7 -- a8..a11
//                                      \-- b8..b11
//
// Content is addressed by what it is: a node's tokens and, through its parent, all tokens before them. Nodes are
// compared token by token, so a hash collision never finds other content; where rows are in place of tokens, their
// digests are compared too.
//
// A node may also be the beginning of a block: what a sequence came to between two borders. Nothing follows it.
//
// A node lives as long as somebody holds it or a node after it lives.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest/sha256.h"
#include "engine/schedule/prefix_key.h"

namespace turbomind {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

class PrefixTree {
 public:
  // `hash_mask` is for tests, which make hashes collide with it.
  explicit PrefixTree(int block_len, uint64_t hash_mask = ~uint64_t{0})
      : block_len_(block_len), hash_mask_(hash_mask) {}

  int block_len() const { return block_len_; }
  // The node of block number `index` of a prefix, or of its first `count` tokens, after `parent` (of the first: its
  // root). kNoNode: it is not known.
  NodeId find(NodeId parent, const PrefixKey& prefix, int index) const {
    return find(parent, prefix, index, block_len_);
  }
  NodeId find(NodeId parent, const PrefixKey& prefix, int index, int count) const;
  NodeId find_root(const PrefixScope& scope) const;
  // The same; one that is not known begins, and is to be held before anything else is let go.
  NodeId get(NodeId parent, const PrefixKey& prefix, int index) { return get(parent, prefix, index, block_len_); }
  NodeId get(NodeId parent, const PrefixKey& prefix, int index, int count);
  NodeId get_root(const PrefixScope& scope);

  void hold(NodeId node) { ++at(node).uses; }
  // It ends when nobody holds it and nothing follows it, and so does what it was the last to follow.
  void let_go(NodeId node);

  NodeId parent(NodeId node) const { return at(node).parent; }
  bool is_part(NodeId node) const { return !is_root(node) && at(node).tokens.size() < static_cast<size_t>(block_len_); }
  bool is_root(NodeId node) const { return at(node).parent == kNoNode; }
  // No number comes twice, and a parent's is lower.
  uint64_t number(NodeId node) const { return at(node).number; }
  std::span<const int32_t> tokens(NodeId node) const { return at(node).tokens; }
  const PrefixScope& scope(NodeId node) const { return at(node).scope; }
  int depth(NodeId node) const { return at(node).depth; }  // nodes before it, its root not counted
  // What a node stands for, in a form that other processes have too: all that a block's content follows from but for
  // what is before it; and a digest of all of it, where `root` is that of its root's scope.
  std::string content_bytes(NodeId node) const { return bytes_of({at(node).tokens, at(node).images}); }
  std::string content_bytes(const PrefixKey& prefix, int index, int count) const {
    return bytes_of(content_of(prefix, index, count));
  }
  const Sha256& digest(NodeId node, const Sha256& root);
  static Sha256 digest_after(const Sha256& parent, const std::string& content);
  // Appends a node and all that follow it.
  void add_subtree(NodeId node, std::vector<NodeId>& nodes) const;
  // Appends the roots of a realm: one for each variant.
  void add_roots(uint64_t realm, std::vector<NodeId>& nodes) const;

  // Ids are below this.
  size_t id_bound() const { return nodes_.size(); }
  size_t node_count() const { return nodes_.size() - unused_.size(); }
  // Throws Error(kInternal) when nodes, their links and the index do not agree.
  void check_invariants() const;

 private:
  // Where rows of an image are in a block: `count` tokens from number `at` on are its rows `first_row`, ... of
  // `rows`.
  struct ImagePart {
    int at = 0;
    int count = 0;
    int first_row = 0;
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
    uint64_t key = 0;     // its place in the index, or a root's among the roots
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId next = kNoNode;  // of the parent's children
    NodeId previous = kNoNode;
    int uses = 0;  // by holders and children
    PrefixScope scope;
    std::vector<int32_t> tokens;  // [block_len], or fewer; none of a root
    std::vector<ImagePart> images;
    int depth = 0;
    std::optional<Sha256> digest;  // once it was asked for
  };

  Node& at(NodeId node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(NodeId node) const { return nodes_[static_cast<size_t>(node)]; }
  Content content_of(const PrefixKey& prefix, int index, int count) const;
  static std::string bytes_of(const Content& content);
  uint64_t key_of(NodeId parent, const Content& content) const;
  NodeId find(NodeId parent, const Content& content, uint64_t key) const;
  // A node in `index`, at `key`.
  NodeId make(std::unordered_multimap<uint64_t, NodeId>& index, uint64_t key);
  static void erase(std::unordered_multimap<uint64_t, NodeId>& index, uint64_t key, NodeId node);

  int block_len_;
  uint64_t hash_mask_;
  std::vector<Node> nodes_;
  std::vector<NodeId> unused_;
  std::unordered_multimap<uint64_t, NodeId> index_;  // by key_of()
  std::unordered_multimap<uint64_t, NodeId> roots_;  // by realm
  uint64_t next_number_ = 1;
};

}  // namespace turbomind
