#include "engine/grammar/automaton.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kMaxItems = 4096;             // of a state, and nodes looked at on the way to it
constexpr size_t kMaxBytes = size_t{8} << 20;  // that are not large, and may be added to what is not forgotten
constexpr size_t kFewItems = 32;               // are looked through faster than a set

Error too_much() {
  return invalid_argument(
      "response_format: finding what may come next takes too much; make it simpler: repetitions inside of repetitions "
      "cost most");
}

}  // namespace

size_t Automaton::ItemsHash::operator()(const Items& items) const {
  uint64_t hash = items.size();
  for (const Item& item : items) {
    hash = mix(mix(hash, item.node), item.frame);
  }
  return hash;
}

Automaton::Automaton(GrammarProgram program, size_t horizon)
    : program_(std::move(program)), horizon_(horizon), large_(kMaxBytes), budget_(kMaxItems) {
  if (!program_.is_sound()) throw internal_error("response_format: its program is broken");
  for (const Node& node : program_.nodes) {
    has_tokens_ = has_tokens_ || node.kind == kToken;
    if (node.kind == kRegion) has_limits_[node.c] = true;
  }
  find_byte_classes();
  start_ = rule_start(0);
}

// Cuts the bytes where a node distinguishes those on both sides.
void Automaton::find_byte_classes() {
  std::array<bool, 257> cuts{};
  const auto cut_around = [&](int32_t first, int32_t last) {
    cuts[static_cast<size_t>(first & 0xFF)] = cuts[static_cast<size_t>(last & 0xFF) + 1] = true;
  };
  for (const Node& node : program_.nodes) {
    if (node.kind == kByte) cut_around(node.a, node.a);
    if (node.kind != kBytes) continue;
    const std::span<const int32_t> pairs = program_.list(node);
    for (size_t i = 0; i < pairs.size(); i += 2) cut_around(pairs[i], pairs[i + 1]);
  }
  for (size_t byte = 0; byte < class_of_.size(); ++byte) {
    if (byte > 0 && cuts[byte]) ++classes_;
    class_of_[byte] = static_cast<uint8_t>(classes_);
  }
  ++classes_;
}

void Automaton::drop_all_but(const std::vector<State*>& kept) {
  std::vector<Items> items;
  for (const State* state : kept) items.push_back(this->items(*state));
  items.push_back(this->items(start_));
  const Frames frames = std::exchange(frames_, Frames(program_));
  states_ = {};
  state_of_ = {};
  transitions_ = {};
  representatives_ = {};
  bytes_ = 0;
  std::unordered_map<int32_t, int32_t> moved;  // frames
  for (size_t i = 0; i < items.size(); ++i) {
    for (Item& item : items[i]) item.frame = frames_.copy_from(frames, item.frame, moved);
    (i < kept.size() ? *kept[i] : start_) = intern(std::move(items[i]));
  }
  large_ = bytes() + kMaxBytes;
}

Automaton::State Automaton::after(State state, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size() && state != kRejected; ++i) state = after(state, static_cast<uint8_t>(bytes[i]));
  return state;
}

Automaton::State Automaton::read(State state, uint8_t byte) {
  Items reached;
  for (const Item& item : items(state)) read(item, byte, reached);
  const State next = reached.empty() ? kRejected : close(std::move(reached));
  transitions_[slot(state, byte)] = next;
  return next;
}

bool Automaton::is_accepting(State state) const {
  return std::ranges::any_of(
      items(state), [this](const Item& item) { return program_.node(item.node).kind == kReturn && item.frame < 0; });
}

std::optional<uint8_t> Automaton::only_byte(State state) const {
  std::optional<uint8_t> only;
  for (const Item& item : items(state)) {
    const Node& node = program_.node(item.node);
    if (node.kind == kReturn && item.frame >= 0) continue;
    if (node.kind != kByte || (only && *only != node.a)) return std::nullopt;
    only = static_cast<uint8_t>(node.a);
  }
  return only;
}

// Adds where an item gets by reading a byte.
void Automaton::read(const Item& item, uint8_t byte, Items& reached) const {
  const Node& node = program_.node(item.node);
  bool may_come = node.kind == kByte && node.a == byte;
  if (node.kind == kBytes) {
    const std::span<const int32_t> pairs = program_.list(node);
    for (size_t i = 0; i < pairs.size(); i += 2) may_come = may_come || (pairs[i] <= byte && byte <= pairs[i + 1]);
  }
  if (may_come) reached.push_back({node.next, item.frame});
}

Automaton::State Automaton::begin_token(State state) {
  if (!has_limits_[kMaxTokens] || state == kRejected) return state;
  std::set<int32_t> full;  // frames of regions that may end here and have no room
  Items after;             // those that end only now
  for (const Item& item : items(state)) {
    const bool is_end = ends_region(item, kMaxTokens);
    if (!is_end && program_.node(item.node).kind != kWhenFull) continue;
    const int32_t number = region_of_tokens(item.frame);
    if (number < 0) continue;
    const Frame& frame = frames_[number];
    const Node& region = program_.node(frame.node);
    if (frame.count < region.b) continue;
    full.insert(number);
    if (!is_end) after.push_back({region.next, frame.parent});
  }
  Items begun = items(state);
  std::erase_if(begun, [this](const Item& item) { return ends_region(item, kMaxTokens); });
  end_regions(full, begun);
  if (!after.empty()) {
    const State ended = close(std::move(after));
    if (ended != kRejected) begun.insert(begun.end(), items(ended).begin(), items(ended).end());
  }
  for (Item& item : begun) {
    item.frame = frames_.with_counts(item.frame, [](const Node& node, int32_t count) {
      return node.kind == kRegion && node.c == kMaxTokens ? std::min(count + 1, node.b) : count;
    });
  }
  return begun.empty() ? kRejected : intern(std::move(begun));
}

// The frame of the innermost region that counts tokens; -1: there is none.
int32_t Automaton::region_of_tokens(int32_t number) const {
  for (; number >= 0; number = frames_[number].parent) {
    const Node* region = frames_.region(frames_[number]);
    if (region != nullptr && region->c == kMaxTokens) break;
  }
  return number;
}

Automaton::State Automaton::after_token(State begun, int32_t token, std::string_view bytes) {
  const State by_bytes = bytes.empty() ? kRejected : after(begun, bytes);
  if (!has_tokens_ || begun == kRejected) return by_bytes;
  Items reached;
  for (const Item& item : items(begun)) {
    const Node& node = program_.node(item.node);
    if (node.kind != kToken) continue;
    const std::span<const int32_t> tokens = program_.list(node);
    const bool is_listed = std::ranges::find(tokens, token) != tokens.end();
    if (is_listed == (node.c == 0)) reached.push_back({node.next, item.frame});
  }
  if (reached.empty()) return by_bytes;
  const State by_number = close(std::move(reached));
  if (by_bytes == kRejected) return by_number;
  if (by_number == kRejected) return by_bytes;
  Items both = items(by_bytes);
  both.insert(both.end(), items(by_number).begin(), items(by_number).end());
  return intern(std::move(both));
}

// Items to be followed: each once, without those of which another one accepts everything.
class Automaton::Frontier {
 public:
  explicit Frontier(Frames& frames) : frames_(frames) {}

  size_t size() const { return items_.size(); }
  const Item& operator[](size_t index) const { return items_[index]; }

  void add(const Item& item) {
    const auto covers = [&](int32_t frame) { return frames_.allows_all_of(frame, item.frame); };
    if (items_.size() < kFewItems) {
      const bool is_covered = std::ranges::any_of(
          items_, [&](const Item& other) { return other.node == item.node && covers(other.frame); });
      if (!is_covered) items_.push_back(item);
      return;
    }
    if (seen_.empty()) {
      seen_.insert(items_.begin(), items_.end());
      for (const Item& other : items_) frames_like(other).push_back(other.frame);
    }
    std::vector<int32_t>& frames = frames_like(item);
    if (std::ranges::any_of(frames, covers) || !seen_.insert(item).second) return;
    if (frames.size() < kFewItems) frames.push_back(item.frame);
    items_.push_back(item);
  }

 private:
  std::vector<int32_t>& frames_like(const Item& item) { return of_shapes_[{item.node, frames_.shape(item.frame)}]; }

  Frames& frames_;
  Items items_;
  std::set<Item> seen_;                             // all of them, once they are many
  std::map<Item, std::vector<int32_t>> of_shapes_;  // and the first frames of each shape
};

// Follows everything that reads nothing, and names the set of what is left. Regions that end as soon as they may do so
// when all that reads nothing within them has been followed; what they are left for is followed after that.
Automaton::State Automaton::close(Items&& reached) {
  Items items;
  std::set<int32_t> left;  // frames of such regions
  size_t visited = 0;
  Items next;
  while (!reached.empty()) {
    Frontier todo(frames_);
    for (const Item& item : reached) todo.add(item);
    reached.clear();
    std::set<int32_t> ended;
    for (size_t i = 0; i < todo.size(); ++i) {
      const Item item = todo[i];
      if (ends_region(item, kShortest)) {
        ended.insert(item.frame);
        continue;
      }
      next.clear();
      if (expand(item, next)) items.push_back(item);
      for (const Item& other : next) todo.add(other);
      if (visited + todo.size() > kMaxItems) throw too_much();
    }
    visited += todo.size();
    if (!ended.empty()) end_regions(ended, items);
    for (const int32_t number : ended) {
      if (!left.insert(number).second) continue;
      const Frame& frame = frames_[number];
      reached.push_back({program_.node(frame.node).next, frame.parent});
    }
  }
  if (visited > budget_) throw too_much();
  budget_ -= visited;
  return items.empty() ? kRejected : intern(std::move(items));
}

// Whether an item is the end of a region with such a limit.
bool Automaton::ends_region(const Item& item, Limit limit) const {
  if (!has_limits_[limit] || item.frame < 0 || program_.node(item.node).kind != kReturn) return false;
  const Node* region = frames_.region(frames_[item.frame]);
  return region != nullptr && region->c == limit;
}

// Removes what is within regions that have ended.
void Automaton::end_regions(const std::set<int32_t>& ended, Items& items) const {
  std::erase_if(items, [&](const Item& item) {
    int32_t frame = item.frame;
    while (frame >= 0 && !ended.contains(frame)) frame = frames_[frame].parent;
    return frame >= 0;
  });
}

Automaton::State Automaton::intern(Items&& items) {
  remove_covered(items);
  const auto [known, is_new] = state_of_.try_emplace(std::move(items), static_cast<State>(states_.size()));
  if (is_new) {
    states_.push_back(&known->first);
    transitions_.resize(transitions_.size() + classes_, kUnknown);
    bytes_ += 96 + known->first.size() * sizeof(Item) + classes_ * sizeof(State);
  }
  return known->second;
}

// Leaves out the items of which others allow all, and sorts the rest: alike ones by their counts.
void Automaton::remove_covered(Items& items) const {
  const auto key = [this](const Item& item) { return std::pair(item.node, frames_.shape(item.frame)); };
  std::ranges::sort(items, [&](const Item& item, const Item& other) {
    const auto of_item = key(item), of_other = key(other);
    return of_item != of_other ? of_item < of_other : frames_.is_less_advanced(item.frame, other.frame);
  });
  Items kept;
  size_t alike = 0;  // the first that is kept of those with the same key
  for (const Item& item : items) {
    if (alike < kept.size() && key(kept[alike]) != key(item)) alike = kept.size();
    // Of many, not all are compared.
    const auto first = kept.begin() + static_cast<ptrdiff_t>(std::max(alike + kFewItems, kept.size()) - kFewItems);
    const auto covers = [&](const Item& other) { return frames_.allows_all_of(other.frame, item.frame); };
    const auto is_covered = [&](const Item& other) { return frames_.allows_all_of(item.frame, other.frame); };
    if (std::any_of(first, kept.end(), covers)) continue;
    kept.erase(std::remove_if(first, kept.end(), is_covered), kept.end());
    if (kept.size() >= alike + 2 && frames_.allow_all_between(kept.end()[-2].frame, item.frame, kept.back().frame)) {
      kept.pop_back();
    }
    kept.push_back(item);
  }
  items = std::move(kept);
}

Automaton::State Automaton::representative(State state) {
  if (horizon_ == 0 || state == kRejected) return state;
  if (const auto known = representatives_.find(state); known != representatives_.end()) return known->second;
  Items moved = items(state);
  for (Item& item : moved) {
    item.frame = frames_.with_counts(item.frame,
                                     [this](const Node& node, int32_t count) { return far_from_bounds(node, count); });
  }
  const State found = intern(std::move(moved));
  representatives_.emplace(state, found);
  bytes_ += 48;
  return found;
}

// A count that stands for all that no text of the horizon's length takes to a bound.
int32_t Automaton::far_from_bounds(const Node& node, int32_t count) const {
  if (node.kind == kRegion) return count < node.b ? 0 : count;
  const int64_t min_bytes = program_.min_bytes.empty() ? 0 : program_.min_bytes[static_cast<size_t>(node.a)];
  if (min_bytes == 0) return count;
  // The one that is open, those that the text reads, and the one that then begins.
  const int64_t reached = count + static_cast<int64_t>(horizon_) / min_bytes + 2;
  if (reached < node.b) return 0;
  return count >= node.b && (node.c < 0 || reached < node.c) ? node.b : count;
}

// Adds to `todo` where an item leads without reading. True for one that is kept: it reads, or is the end of the grammar
// or of a region that counts tokens.
bool Automaton::expand(const Item& item, Items& todo) {
  const Node& node = program_.node(item.node);
  switch (node.kind) {
    case kSplit:
      for (const int32_t next : program_.list(node)) todo.push_back({next, item.frame});
      return false;
    case kCall: {
      const bool is_last = program_.node(node.next).kind == kReturn;
      const int32_t inner = is_last ? item.frame : frames_.add({node.next, -1, item.frame});
      todo.push_back({program_.start(node.a), inner});
      return false;
    }
    case kRegion:
      todo.push_back({program_.start(node.a), frames_.add({item.node, 0, item.frame})});
      return false;
    case kRepeat:
      enter_repeat(item.node, 0, item.frame, todo);
      return false;
    case kReturn: {
      if (item.frame < 0) return true;
      const Frame outer = frames_[item.frame];
      const Node& counted = program_.node(outer.node);
      if (outer.count < 0) {
        todo.push_back({outer.node, outer.parent});
      } else if (counted.kind == kRepeat) {
        enter_repeat(outer.node, outer.count + 1, outer.parent, todo);
      } else {
        todo.push_back({counted.next, outer.parent});
        return counted.c == kMaxTokens;  // begin_token() asks whether it may end here
      }
      return false;
    }
    default:
      return true;
  }
}

// The rule of a kRepeat has occurred `count` times.
void Automaton::enter_repeat(int32_t number, int32_t count, int32_t outer, Items& todo) {
  const Node& node = program_.node(number);
  if (count >= node.b) todo.push_back({node.next, outer});
  if (node.c >= 0 && count >= node.c) return;
  const int32_t kept = node.c < 0 ? std::min(count, node.b) : count;
  todo.push_back({program_.start(node.a), frames_.add({number, kept, outer})});
}

}  // namespace turbomind
