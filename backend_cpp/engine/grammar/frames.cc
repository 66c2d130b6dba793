#include "engine/grammar/frames.h"

#include <algorithm>
#include <limits>

namespace turbomind {

size_t Frames::Hash::operator()(const Frame& frame) const {
  return mix(mix(static_cast<uint64_t>(frame.node), frame.count), frame.parent);
}

const GrammarProgram::Node* Frames::region(const Frame& frame) const {
  const GrammarProgram::Node& node = program_->node(frame.node);
  return frame.count >= 0 && node.kind == GrammarProgram::kRegion ? &node : nullptr;
}

int32_t Frames::add(const Frame& frame) {
  const auto [known, is_new] = number_of_.try_emplace(frame, static_cast<int32_t>(frames_.size()));
  const int32_t number = known->second;
  if (!is_new) return number;
  frames_.push_back(frame);
  shapes_.push_back(number);
  Frame alike = frame;
  if (frame.count >= 0 && region(frame) == nullptr) alike.count = 0;
  alike.parent = shape(frame.parent);
  if (!(alike == frame)) {
    const int32_t found = add(alike);
    shapes_[static_cast<size_t>(number)] = found;
  }
  return number;
}

int32_t Frames::copy_from(const Frames& others, int32_t number, std::unordered_map<int32_t, int32_t>& moved) {
  std::vector<int32_t> stack;  // of those that are not here, the innermost first
  for (; number >= 0 && !moved.contains(number); number = others[number].parent) stack.push_back(number);
  int32_t outer = number < 0 ? -1 : moved.at(number);
  for (auto it = stack.rbegin(); it != stack.rend(); ++it) {
    const Frame& old = others[*it];
    outer = moved[*it] = add({old.node, old.count, outer});
  }
  return outer;
}

bool Frames::is_less_advanced(int32_t number, int32_t other) const {
  bool is_less = false;
  while (number != other) {
    const Frame& one = (*this)[number];
    const Frame& two = (*this)[other];
    if (one.count != two.count) is_less = one.count < two.count;
    number = one.parent;
    other = two.parent;
  }
  return is_less;
}

bool Frames::allows_all_of(int32_t number, int32_t other) const {
  while (number != other) {
    if (number < 0 || other < 0 || shape(number) != shape(other)) return false;
    const Frame& one = (*this)[number];
    const Frame& two = (*this)[other];
    if (region(one) != nullptr) return false;
    if (one.count != two.count) {
      const Range range = remaining(one), needed = remaining(two);
      if (range.min > needed.min || range.max < needed.max) return false;
    }
    number = one.parent;
    other = two.parent;
  }
  return true;
}

bool Frames::allow_all_between(int32_t less, int32_t more, int32_t number) const {
  while (number >= 0) {
    const Frame& frame = (*this)[number];
    const Frame& before = (*this)[less];
    const Frame& after = (*this)[more];
    if (region(frame) != nullptr) return false;
    if (before.count != frame.count || after.count != frame.count) {
      if (before.parent != frame.parent || after.parent != frame.parent) return false;
      const Range upper = remaining(before), lower = remaining(after), needed = remaining(frame);
      return lower.min <= needed.min && needed.max <= upper.max && upper.min <= lower.max + 1;
    }
    number = frame.parent;
    less = before.parent;
    more = after.parent;
  }
  return false;
}

// How many more repetitions may come after the one that is open.
Frames::Range Frames::remaining(const Frame& frame) const {
  const GrammarProgram::Node& node = program_->node(frame.node);
  const int64_t begun = int64_t{frame.count} + 1;
  return {std::max(node.b - begun, int64_t{0}), node.c < 0 ? std::numeric_limits<int32_t>::max() : node.c - begun};
}

}  // namespace turbomind
