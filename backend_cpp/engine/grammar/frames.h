// Stacks of nodes to return to, as linked lists that share their outer parts. Equal stacks are one number.
//
// Frames of repetitions and regions count. Stacks that differ in counts alone are of one shape, and their counts show
// which of them allow all that others do: the same with fewer repetitions, or two others, one with fewer and one with
// more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/grammar/program.h"

namespace turbomind {

struct Frame {
  int32_t node;    // to return to
  int32_t count;   // kRepeat: how often its rule was begun before; kRegion: its counter; else -1
  int32_t parent;  // -1: the grammar ends
  bool operator==(const Frame&) const = default;
};

class Frames {
 public:
  // The program outlives it.
  explicit Frames(const GrammarProgram& program) : program_(&program) {}

  const Frame& operator[](int32_t number) const { return frames_[static_cast<size_t>(number)]; }
  // The node of a frame that counts in a region; null: it does not.
  const GrammarProgram::Node* region(const Frame& frame) const;
  // The number of the same stack with those counts 0 that can be compared; -1 of -1.
  int32_t shape(int32_t number) const { return number < 0 ? -1 : shapes_[static_cast<size_t>(number)]; }

  int32_t add(const Frame& frame);
  // The stack with other counts: `change` gets the node of each frame that counts, and its count.
  template <class Change>
  int32_t with_counts(int32_t number, const Change& change);
  // The stack `number` of others, added here. `moved`: those that are here already.
  int32_t copy_from(const Frames& others, int32_t number, std::unordered_map<int32_t, int32_t>& moved);

  // Of two stacks of a shape, an order: by the outermost count in which they differ.
  bool is_less_advanced(int32_t number, int32_t other) const;
  // Whether all that may come with the other may come with one, as far as their counts show. Not where both are within
  // a region: what reaches its end ends whatever else is within it, so fewer do not allow more.
  bool allows_all_of(int32_t number, int32_t other) const;
  // Whether two stacks of a shape allow together what one between them does. They differ in one count: the first may
  // have more to come than that one, the second less, and nothing in between is left out.
  bool allow_all_between(int32_t less, int32_t more, int32_t number) const;

  size_t bytes() const { return 76 * frames_.size(); }

 private:
  struct Hash {
    size_t operator()(const Frame& frame) const;
  };
  struct Range {
    int64_t min, max;
  };

  Range remaining(const Frame& frame) const;

  const GrammarProgram* program_;
  std::vector<Frame> frames_;
  std::vector<int32_t> shapes_;
  std::unordered_map<Frame, int32_t, Hash> number_of_;
};

// Joins a value to a hash.
inline uint64_t mix(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u ^ (hash >> 29);
}

template <class Change>
int32_t Frames::with_counts(int32_t number, const Change& change) {
  std::vector<Frame> stack;  // the innermost first
  for (; number >= 0; number = stack.back().parent) stack.push_back((*this)[number]);
  int32_t outer = -1;
  for (auto frame = stack.rbegin(); frame != stack.rend(); ++frame) {
    const int32_t count = frame->count < 0 ? frame->count : change(program_->node(frame->node), frame->count);
    outer = add({frame->node, count, outer});
  }
  return outer;
}

}  // namespace turbomind
