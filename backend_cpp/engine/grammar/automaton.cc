#include "engine/grammar/automaton.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace turbomind {

namespace {

constexpr size_t kMaxItems = 256;                 // of a place, and nodes looked at on the way to it
constexpr size_t kMaxBytes = size_t{8} << 20;     // of an automaton
constexpr size_t kMaxTriedBytes = kMaxBytes / 2;  // from here on nothing is kept of a trial
constexpr size_t kFewItems = 32;                  // are looked through faster than a set

uint64_t mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15u ^ (hash >> 29);
}

}  // namespace

size_t Automaton::FrameHash::operator()(const Frame& frame) const {
  return mix(mix(static_cast<uint64_t>(frame.node), static_cast<uint64_t>(frame.count)),
             static_cast<uint64_t>(frame.parent));
}

size_t Automaton::ItemsHash::operator()(const Items& items) const {
  uint64_t hash = items.size();
  for (const Item& item : items) {
    hash = mix(mix(mix(hash, static_cast<uint64_t>(item.node)), static_cast<uint64_t>(item.frame)),
               static_cast<uint64_t>(item.partial));
  }
  return hash;
}

Automaton::Automaton(Program program, size_t horizon) : program_(std::move(program)), horizon_(horizon) {
  if (is_sound(program_)) {
    if (horizon_ > 0) find_least_lengths();
    start_ = close({{program_.starts[0], -1, 0}});
  } else {
    give_up();
  }
}

bool Automaton::is_sound(const Program& program) {
  const auto is_node = [&](int32_t node) { return node >= 0 && static_cast<size_t>(node) < program.nodes.size(); };
  const auto is_rule = [&](int32_t rule) { return rule >= 0 && static_cast<size_t>(rule) < program.starts.size(); };
  const auto is_list = [&](int32_t first, int64_t count) {
    return first >= 0 && count >= 0 && first + count <= static_cast<int64_t>(program.lists.size());
  };
  if (program.starts.empty() || !std::all_of(program.starts.begin(), program.starts.end(), is_node)) return false;
  return std::all_of(program.nodes.begin(), program.nodes.end(), [&](const Node& node) {
    if (node.kind == kReturn) return true;
    if (node.kind == kSplit) {
      return is_list(node.a, node.b) &&
             std::all_of(program.lists.begin() + node.a, program.lists.begin() + node.a + node.b, is_node);
    }
    if (!is_node(node.next)) return false;
    if (node.kind == kClass) return is_list(node.a, int64_t{2} * node.b);
    if (node.kind == kCall || node.kind == kRepeat) return is_rule(node.a);
    return node.kind == kByte;
  });
}

void Automaton::forget() {
  first_ += static_cast<Place>(places_.size());
  frames_ = {};
  frame_of_ = {};
  places_ = {};
  place_of_ = {};
  transitions_ = {};
  nearby_ = {};
  bytes_ = 0;
}

void Automaton::give_up() {
  forget();
  is_given_up_ = true;
  program_ = {};
  start_ = kNowhere;
}

Automaton::Place Automaton::after(Place place, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size() && place != kNowhere; ++i) place = after(place, static_cast<uint8_t>(bytes[i]));
  if (bytes_ > kMaxBytes && !trial_) {
    forget();
    start_ = close({{program_.starts[0], -1, 0}});
    return kNowhere;
  }
  return place;
}

Automaton::Place Automaton::after(Place place, uint8_t byte) {
  if (place < first_ || is_given_up_) return kNowhere;
  const uint64_t key = static_cast<uint64_t>(place) << 8 | byte;
  if (const auto known = transitions_.find(key); known != transitions_.end()) return known->second;
  Items reached;
  for (const Item& item : *places_[static_cast<size_t>(place - first_)]) read(item, byte, reached);
  const Place next = reached.empty() ? kNowhere : close(std::move(reached));
  if (is_given_up_) return kNowhere;
  transitions_.emplace(key, next);
  if (trial_) trial_->transitions.push_back(key);
  bytes_ += 48;
  return next;
}

void Automaton::begin_trial() {
  trial_ = Trial{frames_.size(), places_.size(), bytes_, {}};
}

void Automaton::end_trial() {
  const Trial trial = std::move(*trial_);
  trial_.reset();
  if (bytes_ <= kMaxTriedBytes || is_given_up_) return;
  for (const uint64_t key : trial.transitions) transitions_.erase(key);
  for (; places_.size() > trial.places; places_.pop_back()) place_of_.erase(place_of_.find(*places_.back()));
  for (; frames_.size() > trial.frames; frames_.pop_back()) frame_of_.erase(frames_.back());
  bytes_ = trial.bytes;
}

bool Automaton::may_end(Place place) const {
  return std::ranges::any_of(items(place), [this](const Item& item) {
    return program_.nodes[static_cast<size_t>(item.node)].kind == kReturn && item.frame < 0;
  });
}

bool Automaton::is_inside_character(Place place) const {
  return std::ranges::any_of(items(place), [](const Item& item) { return item.partial != 0; });
}

std::optional<uint8_t> Automaton::only_byte(Place place) const {
  std::optional<uint8_t> only;
  for (const Item& item : items(place)) {
    const Node& node = program_.nodes[static_cast<size_t>(item.node)];
    int32_t byte = node.kind == kByte ? node.a : -1;
    if (node.kind == kClass && item.partial == 0 && node.b == 1 && node.c == 0) {
      const auto pair = static_cast<size_t>(node.a);
      if (program_.lists[pair] == program_.lists[pair + 1] && program_.lists[pair] < 0x80) byte = program_.lists[pair];
    }
    if (byte < 0 || (only && *only != byte)) return std::nullopt;
    only = static_cast<uint8_t>(byte);
  }
  return only;
}

int64_t Automaton::characters(Place place) const {
  int64_t count = 0;
  for (const Item& item : items(place)) {
    const Node& node = program_.nodes[static_cast<size_t>(item.node)];
    if (node.kind == kByte) ++count;
    if (node.kind != kClass) continue;
    if (node.c != 0) return std::numeric_limits<int32_t>::max();
    for (int32_t i = 0; i < node.b; ++i) {
      const auto pair = static_cast<size_t>(node.a) + 2 * static_cast<size_t>(i);
      count += int64_t{program_.lists[pair + 1]} - program_.lists[pair] + 1;
    }
  }
  return count;
}

// Adds where an item gets by reading a byte. UTF-8 is trusted: what is not valid is not allowed to come.
void Automaton::read(const Item& item, uint8_t byte, Items& reached) const {
  const Node& node = program_.nodes[static_cast<size_t>(item.node)];
  if (node.kind == kByte) {
    if (node.a == byte) reached.push_back({node.next, item.frame, 0});
    return;
  }
  if (node.kind != kClass) return;
  int32_t code_point = byte;
  int32_t to_come = 0;
  if (item.partial != 0) {
    if ((byte & 0xC0) != 0x80) return;
    code_point = (item.partial >> 2) << 6 | (byte & 0x3F);
    to_come = (item.partial & 3) - 1;
  } else if (byte >= 0xF0) {
    code_point = byte & 0x07;
    to_come = 3;
  } else if (byte >= 0xE0) {
    code_point = byte & 0x0F;
    to_come = 2;
  } else if (byte >= 0x80) {
    if (byte < 0xC0) return;
    code_point = byte & 0x1F;
    to_come = 1;
  }
  if (to_come > 0) {
    reached.push_back({item.node, item.frame, code_point << 2 | to_come});
  } else if (is_in_class(node, code_point)) {
    reached.push_back({node.next, item.frame, 0});
  }
}

bool Automaton::is_in_class(const Node& node, int32_t code_point) const {
  bool is_listed = false;
  for (int32_t i = 0; i < node.b && !is_listed; ++i) {
    const auto pair = static_cast<size_t>(node.a) + 2 * static_cast<size_t>(i);
    is_listed = code_point >= program_.lists[pair] && code_point <= program_.lists[pair + 1];
  }
  return is_listed != (node.c != 0);
}

// Follows everything that reads nothing, and names the set of what is left.
Automaton::Place Automaton::close(Items&& reached) {
  Items todo = std::move(reached);
  std::set<Item> seen;  // all of todo, once they are many
  const auto is_new = [&](const Item& item) {
    if (todo.size() <= kFewItems) return std::ranges::find(todo, item) == todo.end();
    if (seen.empty()) seen.insert(todo.begin(), todo.end());
    return seen.insert(item).second;
  };
  Items items;
  Items next;
  for (size_t i = 0; i < todo.size(); ++i) {
    const Item item = todo[i];
    next.clear();
    if (expand(item, next)) items.push_back(item);
    for (const Item& other : next) {
      if (is_new(other)) todo.push_back(other);
    }
    if (todo.size() > kMaxItems) {
      give_up();
      return kNowhere;
    }
  }
  return name(std::move(items));
}

Automaton::Place Automaton::name(Items&& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  const auto [known, is_unnamed] = place_of_.try_emplace(std::move(items), first_ + static_cast<Place>(places_.size()));
  if (is_unnamed) {
    places_.push_back(&known->first);
    bytes_ += 96 + known->first.size() * sizeof(Item);
  }
  return known->second;
}

// The least that can be read from each node to the end of its rule, until nothing gets less. Rules that take too many
// rounds count as reading nothing.
void Automaton::find_least_lengths() {
  constexpr int64_t kNone = int64_t{1} << 40;
  constexpr int kMaxRounds = 32;
  std::vector<int64_t> left(program_.nodes.size(), kNone);
  const auto of_rule = [&](int32_t rule) {
    return left[static_cast<size_t>(program_.starts[static_cast<size_t>(rule)])];
  };
  const auto from = [&](const Node& node) {
    if (node.kind == kReturn) return int64_t{0};
    if (node.kind == kSplit) {
      int64_t least = kNone;
      for (int32_t i = 0; i < node.b; ++i) {
        least = std::min(least, left[static_cast<size_t>(program_.lists[static_cast<size_t>(node.a + i)])]);
      }
      return least;
    }
    const int64_t next = left[static_cast<size_t>(node.next)];
    if (node.kind == kCall) return std::min(kNone, next + of_rule(node.a));
    if (node.kind == kRepeat) return std::min(kNone, next + (node.b > 0 ? node.b * of_rule(node.a) : 0));
    return std::min(kNone, next + 1);
  };
  bool is_stable = false;
  for (int round = 0; round < kMaxRounds && !is_stable; ++round) {
    is_stable = true;
    for (size_t i = 0; i < left.size(); ++i) {
      const int64_t least = from(program_.nodes[i]);
      is_stable = is_stable && least >= left[i];
      left[i] = std::min(left[i], least);
    }
  }
  for (int32_t rule = 0; rule < static_cast<int32_t>(program_.starts.size()); ++rule) {
    least_.push_back(is_stable ? of_rule(rule) : 0);
  }
}

Automaton::Place Automaton::nearby(Place place) {
  if (horizon_ == 0 || !is_known(place)) return place;
  if (const auto known = nearby_.find(place); known != nearby_.end()) return known->second;
  Items moved = items(place);
  for (Item& item : moved) item.frame = far_from_bounds(item.frame);
  const Place found = name(std::move(moved));
  nearby_.emplace(place, found);
  bytes_ += 48;
  return found;
}

// The frame with counts that stand for all that no text of the horizon's length takes to a bound.
int32_t Automaton::far_from_bounds(int32_t number) {
  std::vector<Frame> stack;  // the innermost first
  for (; number >= 0; number = stack.back().parent) stack.push_back(frames_[static_cast<size_t>(number)]);
  int32_t outer = -1;
  for (auto it = stack.rbegin(); it != stack.rend(); ++it) {
    int32_t count = it->count;
    const Node& node = program_.nodes[static_cast<size_t>(it->node)];
    if (count >= 0 && least_[static_cast<size_t>(node.a)] > 0) {
      // The one that is open, those that the text reads, and the one that then begins.
      const int64_t reached = count + static_cast<int64_t>(horizon_) / least_[static_cast<size_t>(node.a)] + 2;
      if (reached < node.b) {
        count = 0;
      } else if (count >= node.b && (node.c < 0 || reached < node.c)) {
        count = node.b;
      }
    }
    outer = frame({it->node, count, outer});
  }
  return outer;
}

// Adds to `todo` where an item leads without reading. True for one that reads, or is the end of the grammar.
bool Automaton::expand(const Item& item, Items& todo) {
  const Node& node = program_.nodes[static_cast<size_t>(item.node)];
  switch (node.kind) {
    case kSplit:
      for (int32_t i = 0; i < node.b; ++i) {
        todo.push_back({program_.lists[static_cast<size_t>(node.a + i)], item.frame, 0});
      }
      return false;
    case kCall: {
      const bool is_last = program_.nodes[static_cast<size_t>(node.next)].kind == kReturn;
      const int32_t inner = is_last ? item.frame : frame({node.next, -1, item.frame});
      todo.push_back({program_.starts[static_cast<size_t>(node.a)], inner, 0});
      return false;
    }
    case kRepeat:
      enter_repeat(item.node, 0, item.frame, todo);
      return false;
    case kReturn: {
      if (item.frame < 0) return true;
      const Frame outer = frames_[static_cast<size_t>(item.frame)];
      if (outer.count >= 0) {
        enter_repeat(outer.node, outer.count + 1, outer.parent, todo);
      } else {
        todo.push_back({outer.node, outer.parent, 0});
      }
      return false;
    }
    default:
      return true;
  }
}

// The rule of a kRepeat has occurred `count` times.
void Automaton::enter_repeat(int32_t number, int32_t count, int32_t outer, Items& todo) {
  const Node& node = program_.nodes[static_cast<size_t>(number)];
  if (count >= node.b) todo.push_back({node.next, outer, 0});
  if (node.c >= 0 && count >= node.c) return;
  const int32_t kept = node.c < 0 ? std::min(count, node.b) : count;
  todo.push_back({program_.starts[static_cast<size_t>(node.a)], frame({number, kept, outer}), 0});
}

int32_t Automaton::frame(const Frame& wanted) {
  const auto [known, is_new] = frame_of_.try_emplace(wanted, static_cast<int32_t>(frames_.size()));
  if (is_new) {
    frames_.push_back(wanted);
    bytes_ += 72;
  }
  return known->second;
}

}  // namespace turbomind
