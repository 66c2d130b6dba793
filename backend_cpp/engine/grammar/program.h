// A grammar as a graph of nodes, which an automaton (automaton.h) follows.
//
// A node says what is read and which node comes after it; rules are called like functions. A region is a call with a
// limit: on its tokens, or that it ends as early as possible.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace turbomind {

struct GrammarProgram {
  enum Kind : int32_t {
    kByte,
    kBytes,
    kToken,
    kSplit,
    kCall,
    kRegion,
    kRepeat,
    kReturn,
    kWhenFull,  // an end of a rule within a region of tokens, where that has no room for another one
  };
  enum Limit : int32_t { kMaxTokens, kShortest };
  struct Node {
    int32_t kind = kReturn;
    // kByte: the byte; kBytes: first of its pairs; kToken: first of its tokens; kSplit: first of its nodes;
    // kCall, kRegion, kRepeat: the rule
    int32_t a = 0;
    // How many pairs, tokens or nodes; kRegion: how many tokens may begin in it; kRepeat: the least count
    int32_t b = 0;
    // kToken: whether it is what the list leaves out; kRegion: its Limit; kRepeat: the largest count, -1: none
    int32_t c = 0;
    int32_t next = 0;  // the node after it; not of kSplit, kReturn and kWhenFull

    bool is_call() const { return kind == kCall || kind == kRegion || kind == kRepeat; }
    bool is_end() const { return kind == kReturn || kind == kWhenFull; }
  };

  std::vector<Node> nodes;
  std::vector<int32_t> lists;      // pairs of bytes, first and last; tokens; nodes of the splits
  std::vector<int32_t> starts;     // a node a rule; the first rule is the root
  std::vector<int32_t> min_bytes;  // bytes of the shortest text of each rule; none: it is not known

  const Node& node(int32_t number) const { return nodes[static_cast<size_t>(number)]; }
  int32_t start(int32_t rule) const { return starts[static_cast<size_t>(rule)]; }
  // Numbers of a node's list: two for each pair of kBytes.
  std::span<const int32_t> list(const Node& node) const {
    const int32_t size = node.kind == kBytes ? 2 * node.b : node.b;
    return {lists.data() + node.a, static_cast<size_t>(size)};
  }

  // `bytes`: its four lists, each after its uint32 length. Throws Error(kInternal) for those of no sound program.
  static GrammarProgram read(std::string_view bytes);

  // Whether all indices are in range and it has a rule.
  bool is_sound() const;
  bool has_sound_content(const Node& node) const;  // of all but the node after it
};

}  // namespace turbomind
