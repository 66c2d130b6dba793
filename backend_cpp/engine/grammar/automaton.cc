#include "engine/grammar/automaton.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kMaxItems = 4096;             // of a place, and nodes looked at on the way to it
constexpr size_t kMaxBytes = size_t{8} << 20;  // that are not large, and may be added to what is not forgotten
constexpr size_t kFewItems = 32;               // are looked through faster than a set
constexpr int32_t kLastCharacter = 0x10FFFF;
constexpr int32_t kAnyRest = kLastCharacter + 1;  // whatever continues the character may come

uint64_t mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15u ^ (hash >> 29);
}

Error too_much() {
  return invalid_argument(
      "response_format: finding what may come next takes too much; make it simpler: repetitions inside of repetitions "
      "cost most");
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

Automaton::Automaton(Program program, size_t horizon)
    : program_(std::move(program)), horizon_(horizon), large_(kMaxBytes) {
  if (!is_sound(program_)) throw internal_error("response_format: its program is broken");
  for (const Node& node : program_.nodes) {
    has_tokens_ = has_tokens_ || node.kind == kToken;
    if (node.kind == kRegion) has_limits_[node.c] = true;
  }
  find_byte_classes();
  allow_no_repetitions();
  if (horizon_ > 0) find_least_lengths();
  budget_ = kMaxItems;
  start_ = close({{program_.starts[0], -1, 0}});
}

bool Automaton::is_sound(const Program& program) {
  const auto is_node = [&](int32_t node) { return node >= 0 && static_cast<size_t>(node) < program.nodes.size(); };
  const auto is_rule = [&](int32_t rule) { return rule >= 0 && static_cast<size_t>(rule) < program.starts.size(); };
  const auto is_list = [&](int32_t first, int64_t count) {
    return first >= 0 && count >= 0 && first + count <= static_cast<int64_t>(program.lists.size());
  };
  if (program.starts.empty() || !std::all_of(program.starts.begin(), program.starts.end(), is_node)) return false;
  return std::all_of(program.nodes.begin(), program.nodes.end(), [&](const Node& node) {
    if (node.kind == kReturn || node.kind == kWhenFull) return true;
    if (node.kind == kSplit) {
      return is_list(node.a, node.b) &&
             std::all_of(program.lists.begin() + node.a, program.lists.begin() + node.a + node.b, is_node);
    }
    if (!is_node(node.next)) return false;
    if (node.kind == kClass || node.kind == kBytes) return is_list(node.a, int64_t{2} * node.b);
    if (node.kind == kToken) return is_list(node.a, node.b);
    if (node.kind == kRegion && (node.b < 0 || node.c < kMaxTokens || node.c > kShortest)) return false;
    if (node.kind == kCall || node.kind == kRegion || node.kind == kRepeat) return is_rule(node.a);
    return node.kind == kByte && node.a >= 0 && node.a < 256;
  });
}

// Cuts the bytes where a node distinguishes those on both sides, and where UTF-8 does.
void Automaton::find_byte_classes() {
  std::array<bool, 257> cuts{};
  for (const size_t byte : {0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5})
    cuts[byte] = true;
  const auto cut_at = [&](int64_t character) {
    if (character >= 0 && character <= 0x80) {
      cuts[static_cast<size_t>(character)] = true;
    } else if (character > 0 && character <= kLastCharacter) {
      std::fill(cuts.begin() + 0x80, cuts.end(), true);
    }
  };
  for (const Node& node : program_.nodes) {
    if (node.kind == kByte) cuts[static_cast<size_t>(node.a)] = cuts[static_cast<size_t>(node.a) + 1] = true;
    if (node.kind != kClass && node.kind != kBytes) continue;
    for (auto pair = program_.lists.begin() + node.a; pair != program_.lists.begin() + node.a + 2 * node.b; pair += 2) {
      if (node.kind == kBytes) {
        cuts[static_cast<size_t>(pair[0] & 0xFF)] = cuts[static_cast<size_t>(pair[1] & 0xFF) + 1] = true;
        continue;
      }
      cut_at(pair[0]);
      cut_at(int64_t{pair[1]} + 1);
    }
  }
  for (size_t byte = 0; byte < class_of_.size(); ++byte) {
    if (byte > 0 && cuts[byte]) ++classes_;
    class_of_[byte] = static_cast<uint8_t>(classes_);
  }
  ++classes_;
}

void Automaton::forget_all_but(const std::vector<Place*>& kept) {
  std::vector<Items> items;
  for (const Place* place : kept) items.push_back(this->items(*place));
  items.push_back(this->items(start_));
  const std::vector<Frame> frames = std::exchange(frames_, {});
  shapes_ = {};
  frame_of_ = {};
  places_ = {};
  place_of_ = {};
  transitions_ = {};
  nearby_ = {};
  bytes_ = 0;
  std::unordered_map<int32_t, int32_t> moved;  // frames
  const auto move = [&](int32_t number) {
    std::vector<int32_t> stack;  // of those that were not, the innermost first
    for (; number >= 0 && !moved.contains(number); number = frames[static_cast<size_t>(number)].parent) {
      stack.push_back(number);
    }
    int32_t outer = number < 0 ? -1 : moved.at(number);
    for (auto it = stack.rbegin(); it != stack.rend(); ++it) {
      const Frame& old = frames[static_cast<size_t>(*it)];
      outer = moved[*it] = frame({old.node, old.count, outer});
    }
    return outer;
  };
  for (size_t i = 0; i < items.size(); ++i) {
    for (Item& item : items[i]) item.frame = move(item.frame);
    (i < kept.size() ? *kept[i] : start_) = name(std::move(items[i]));
  }
  large_ = bytes_ + kMaxBytes;
}

Automaton::Place Automaton::after(Place place, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size() && place != kNowhere; ++i) place = after(place, static_cast<uint8_t>(bytes[i]));
  return place;
}

Automaton::Place Automaton::read(Place place, uint8_t byte) {
  Items reached;
  const bool counts = has_limits_[kMaxCharacters] && (byte & 0xC0) != 0x80;  // a character begins
  for (Item item : items(place)) {
    if (!counts || count_character(item)) read(item, byte, reached);
  }
  const Place next = reached.empty() ? kNowhere : close(std::move(reached));
  transitions_[slot(place, byte)] = next;
  return next;
}

bool Automaton::may_end(Place place) const {
  return std::ranges::any_of(items(place), [this](const Item& item) {
    return program_.nodes[static_cast<size_t>(item.node)].kind == kReturn && item.frame < 0;
  });
}

std::optional<uint8_t> Automaton::only_byte(Place place) const {
  std::optional<uint8_t> only;
  for (const Item& item : items(place)) {
    const Node& node = program_.nodes[static_cast<size_t>(item.node)];
    if (node.kind == kReturn && item.frame >= 0) continue;
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

// Adds where an item gets by reading a byte.
void Automaton::read(const Item& item, uint8_t byte, Items& reached) const {
  const Node& node = program_.nodes[static_cast<size_t>(item.node)];
  if (node.kind == kByte && node.a == byte) reached.push_back({node.next, item.frame, 0});
  if (node.kind == kBytes && in_class(node, byte, byte) == Share::kAll) reached.push_back({node.next, item.frame, 0});
  if (node.kind == kClass) read_character(item, byte, reached);
}

// The same for a character, which has to be UTF-8 (RFC 3629).
void Automaton::read_character(const Item& item, uint8_t byte, Items& reached) const {
  const Node& node = program_.nodes[static_cast<size_t>(item.node)];
  int32_t code_point = byte;
  int32_t to_come = 0;
  if (item.partial != 0) {
    if ((byte & 0xC0) != 0x80) return;
    const int32_t so_far = item.partial >> 2;
    to_come = (item.partial & 3) - 1;
    code_point = so_far == kAnyRest ? kAnyRest : so_far << 6 | (byte & 0x3F);
    // No overlong forms, no surrogates, nothing beyond the last character.
    if (to_come == 2 && (code_point < 0x10 || code_point > 0x10F) && code_point != kAnyRest) return;
    if (to_come == 1 && (code_point < 0x20 || (code_point >= 0x360 && code_point < 0x380))) return;
  } else if (byte >= 0x80) {
    to_come = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : 1;
    if (byte < 0xC2 || byte > 0xF4) return;
    code_point = byte & (0x3F >> to_come);
  }
  Share share = Share::kAll;
  if (code_point != kAnyRest) {
    int32_t first = code_point << 6 * to_come;
    int32_t last = first + (1 << 6 * to_come) - 1;
    // Some continuations of these are no characters.
    const bool is_partly_valid = (to_come == 2 && (first < 0x1000 || first == 0xD000)) ||
                                 (to_come == 3 && (first < 0x40000 || first >= 0x100000));
    if (is_partly_valid) {
      first = std::max(first, to_come == 2 ? 0x800 : 0x10000);
      last = std::min(last, first == 0xD000 ? 0xD7FF : kLastCharacter);
    }
    share = in_class(node, first, last);
    if (share == Share::kNone) return;
    if (is_partly_valid) share = Share::kSome;
  }
  if (to_come == 0) {
    reached.push_back({node.next, item.frame, 0});
  } else {
    reached.push_back({item.node, item.frame, (share == Share::kAll ? kAnyRest : code_point) << 2 | to_come});
  }
}

// How many of some characters are in a class. kSome where that takes more than one of its pairs to say.
Automaton::Share Automaton::in_class(const Node& node, int32_t first, int32_t last) const {
  Share listed = Share::kNone;
  for (auto pair = program_.lists.begin() + node.a; pair != program_.lists.begin() + node.a + 2 * node.b; pair += 2) {
    if (pair[0] <= first && last <= pair[1]) {
      listed = Share::kAll;
      break;
    }
    if (pair[0] <= last && first <= pair[1]) listed = Share::kSome;
  }
  if (node.c == 0 || listed == Share::kSome) return listed;
  return listed == Share::kAll ? Share::kNone : Share::kAll;
}

// Counts a character in an item's regions. False: one has no room for it.
bool Automaton::count_character(Item& item) {
  bool has_room = true;
  item.frame = with_counts(item.frame, [&](const Node& node, int32_t count) {
    if (node.kind != kRegion || node.c != kMaxCharacters) return count;
    has_room = has_room && count < node.b;
    return count + 1;
  });
  return has_room;
}

Automaton::Place Automaton::begin_token(Place place) {
  if (!has_limits_[kMaxTokens] || place == kNowhere) return place;
  std::set<int32_t> full;  // frames of regions that may end here and have no room
  Items after;             // those that end only now
  for (const Item& item : items(place)) {
    const bool is_end = ended_region(item, kMaxTokens) != nullptr;
    if (!is_end && program_.nodes[static_cast<size_t>(item.node)].kind != kWhenFull) continue;
    const int32_t number = region_of_tokens(item.frame);
    if (number < 0) continue;
    const Frame& frame = frames_[static_cast<size_t>(number)];
    const Node& region = program_.nodes[static_cast<size_t>(frame.node)];
    if (frame.count < region.b) continue;
    full.insert(number);
    if (!is_end) after.push_back({region.next, frame.parent, 0});
  }
  Items begun = items(place);
  std::erase_if(begun, [this](const Item& item) { return ended_region(item, kMaxTokens) != nullptr; });
  end_regions(full, begun);
  if (!after.empty()) {
    const Place ended = close(std::move(after));
    if (ended != kNowhere) begun.insert(begun.end(), items(ended).begin(), items(ended).end());
  }
  for (Item& item : begun) {
    item.frame = with_counts(item.frame, [](const Node& node, int32_t count) {
      return node.kind == kRegion && node.c == kMaxTokens ? std::min(count + 1, node.b) : count;
    });
  }
  return begun.empty() ? kNowhere : name(std::move(begun));
}

// The frame of the innermost region that counts tokens; -1: there is none.
int32_t Automaton::region_of_tokens(int32_t number) const {
  for (; number >= 0; number = frames_[static_cast<size_t>(number)].parent) {
    const Frame& frame = frames_[static_cast<size_t>(number)];
    const Node& node = program_.nodes[static_cast<size_t>(frame.node)];
    if (frame.count >= 0 && node.kind == kRegion && node.c == kMaxTokens) break;
  }
  return number;
}

Automaton::Place Automaton::after_token(Place begun, int32_t token, std::string_view bytes) {
  const Place by_bytes = bytes.empty() ? kNowhere : after(begun, bytes);
  if (!has_tokens_ || begun == kNowhere) return by_bytes;
  Items reached;
  for (const Item& item : items(begun)) {
    const Node& node = program_.nodes[static_cast<size_t>(item.node)];
    if (node.kind != kToken) continue;
    const auto first = program_.lists.begin() + node.a;
    if ((std::find(first, first + node.b, token) != first + node.b) == (node.c == 0)) {
      reached.push_back({node.next, item.frame, 0});
    }
  }
  if (reached.empty()) return by_bytes;
  const Place by_number = close(std::move(reached));
  if (by_bytes == kNowhere) return by_number;
  if (by_number == kNowhere) return by_bytes;
  Items both = items(by_bytes);
  both.insert(both.end(), items(by_number).begin(), items(by_number).end());
  return name(std::move(both));
}

// Follows everything that reads nothing, and names the set of what is left. Regions that end as soon as they may do so
// when all that reads nothing within them has been followed; what they are left for is followed after that.
Automaton::Place Automaton::close(Items&& reached) {
  Items items;
  std::set<int32_t> left;  // frames of such regions
  size_t looked_at = 0;
  while (!reached.empty()) {
    Items todo;
    std::set<Item> seen;                             // all of todo, once they are many
    std::map<Item, std::vector<int32_t>> of_shapes;  // and the first frames of each shape
    const auto frames_like = [&](const Item& item) -> std::vector<int32_t>& {
      return of_shapes[{item.node, item.frame < 0 ? -1 : shapes_[static_cast<size_t>(item.frame)], item.partial}];
    };
    const auto add = [&](const Item& item) {
      const auto covers = [&](int32_t frame) { return allows_all_of(frame, item.frame); };
      if (todo.size() < kFewItems) {
        const bool is_covered = std::ranges::any_of(todo, [&](const Item& other) {
          return other.node == item.node && other.partial == item.partial && covers(other.frame);
        });
        if (!is_covered) todo.push_back(item);
        return;
      }
      if (seen.empty()) {
        seen.insert(todo.begin(), todo.end());
        for (const Item& other : todo) frames_like(other).push_back(other.frame);
      }
      std::vector<int32_t>& frames = frames_like(item);
      if (std::ranges::any_of(frames, covers) || !seen.insert(item).second) return;
      if (frames.size() < kFewItems) frames.push_back(item.frame);
      todo.push_back(item);
    };
    for (const Item& item : reached) add(item);
    reached.clear();
    Items next;
    std::set<int32_t> ended;
    for (size_t i = 0; i < todo.size(); ++i) {
      const Item item = todo[i];
      if (ended_region(item, kShortest) != nullptr) {
        ended.insert(item.frame);
        continue;
      }
      next.clear();
      if (expand(item, next)) items.push_back(item);
      for (const Item& other : next) add(other);
      if (looked_at + todo.size() > kMaxItems) throw too_much();
    }
    looked_at += todo.size();
    if (!ended.empty()) end_regions(ended, items);
    for (const int32_t number : ended) {
      if (!left.insert(number).second) continue;
      const Frame& frame = frames_[static_cast<size_t>(number)];
      reached.push_back({program_.nodes[static_cast<size_t>(frame.node)].next, frame.parent, 0});
    }
  }
  if (looked_at > budget_) throw too_much();
  budget_ -= looked_at;
  return items.empty() ? kNowhere : name(std::move(items));
}

// The frame of a region with a limit whose end an item is; null: it is no such end.
const Automaton::Frame* Automaton::ended_region(const Item& item, Limit limit) const {
  if (!has_limits_[limit] || item.frame < 0) return nullptr;
  if (program_.nodes[static_cast<size_t>(item.node)].kind != kReturn) return nullptr;
  const Frame& frame = frames_[static_cast<size_t>(item.frame)];
  const Node& node = program_.nodes[static_cast<size_t>(frame.node)];
  return frame.count >= 0 && node.kind == kRegion && node.c == limit ? &frame : nullptr;
}

// Removes what is within regions that have ended.
void Automaton::end_regions(const std::set<int32_t>& ended, Items& items) const {
  std::erase_if(items, [&](const Item& item) {
    int32_t frame = item.frame;
    while (frame >= 0 && !ended.contains(frame)) frame = frames_[static_cast<size_t>(frame)].parent;
    return frame >= 0;
  });
}

Automaton::Place Automaton::name(Items&& items) {
  leave_out_covered(items);
  const auto [known, is_unnamed] = place_of_.try_emplace(std::move(items), static_cast<Place>(places_.size()));
  if (is_unnamed) {
    places_.push_back(&known->first);
    transitions_.resize(transitions_.size() + classes_, kUnread);
    bytes_ += 96 + known->first.size() * sizeof(Item) + classes_ * sizeof(Place);
  }
  return known->second;
}

// Leaves out the items of which others allow all, and sorts the rest: alike ones by their counts.
void Automaton::leave_out_covered(Items& items) const {
  const auto key = [this](const Item& item) {
    const int32_t shape = item.frame < 0 ? -1 : shapes_[static_cast<size_t>(item.frame)];
    return std::tuple(item.node, item.partial, shape);
  };
  std::ranges::sort(items, [&](const Item& item, const Item& other) {
    const auto of_item = key(item), of_other = key(other);
    return of_item != of_other ? of_item < of_other : has_come_less_far(item.frame, other.frame);
  });
  Items kept;
  size_t alike = 0;  // the first that is kept of those with the same key
  for (const Item& item : items) {
    if (alike < kept.size() && key(kept[alike]) != key(item)) alike = kept.size();
    // Of many, not all are compared.
    const auto first = kept.begin() + static_cast<ptrdiff_t>(std::max(alike + kFewItems, kept.size()) - kFewItems);
    const auto covers = [&](const Item& other) { return allows_all_of(other.frame, item.frame); };
    const auto is_covered = [&](const Item& other) { return allows_all_of(item.frame, other.frame); };
    if (std::any_of(first, kept.end(), covers)) continue;
    kept.erase(std::remove_if(first, kept.end(), is_covered), kept.end());
    if (kept.size() >= alike + 2 && allow_all_between(kept.end()[-2].frame, item.frame, kept.back().frame)) {
      kept.pop_back();
    }
    kept.push_back(item);
  }
  items = std::move(kept);
}

// An order of the frames of a shape: by the outermost count in which they differ.
bool Automaton::has_come_less_far(int32_t number, int32_t other) const {
  bool is_less = false;
  while (number != other) {
    const Frame& frame = frames_[static_cast<size_t>(number)];
    const Frame& other_frame = frames_[static_cast<size_t>(other)];
    if (frame.count != other_frame.count) is_less = frame.count < other_frame.count;
    number = frame.parent;
    other = other_frame.parent;
  }
  return is_less;
}

// How many more repetitions may come after the one that is open, or how many more characters.
Automaton::Range Automaton::to_come(const Frame& frame) const {
  const Node& node = program_.nodes[static_cast<size_t>(frame.node)];
  if (node.kind == kRegion) return {0, int64_t{node.b} - frame.count};
  const int64_t begun = int64_t{frame.count} + 1;
  return {std::max(node.b - begun, int64_t{0}), node.c < 0 ? std::numeric_limits<int32_t>::max() : node.c - begun};
}

// Whether all that may come with one frame may come with the other, as far as their counts show. Not where the ends of
// regions differ: what reaches one ends whatever else is within it.
bool Automaton::allows_all_of(int32_t number, int32_t other) const {
  while (number != other) {
    if (number < 0 || other < 0) return false;
    if (shapes_[static_cast<size_t>(number)] != shapes_[static_cast<size_t>(other)]) return false;
    const Frame& frame = frames_[static_cast<size_t>(number)];
    const Frame& other_frame = frames_[static_cast<size_t>(other)];
    if (ends_all_within(frame)) return false;
    if (frame.count != other_frame.count) {
      const Range range = to_come(frame), wanted = to_come(other_frame);
      if (range.least > wanted.least || range.most < wanted.most) return false;
    }
    number = frame.parent;
    other = other_frame.parent;
  }
  return true;
}

// Whether two frames of a shape allow together what one between them does. They differ in one count: the first may have
// more to come than that one, the second less, and nothing in between is left out.
bool Automaton::allow_all_between(int32_t less, int32_t more, int32_t number) const {
  while (number >= 0) {
    const Frame& frame = frames_[static_cast<size_t>(number)];
    const Frame& before = frames_[static_cast<size_t>(less)];
    const Frame& after = frames_[static_cast<size_t>(more)];
    if (ends_all_within(frame)) return false;
    if (before.count != frame.count || after.count != frame.count) {
      if (before.parent != frame.parent || after.parent != frame.parent) return false;
      const Range most = to_come(before), least = to_come(after), wanted = to_come(frame);
      return least.least <= wanted.least && wanted.most <= most.most && most.least <= least.most + 1;
    }
    number = frame.parent;
    less = before.parent;
    more = after.parent;
  }
  return false;
}

// A region whose end, where it is reached, leaves nothing else within it.
bool Automaton::ends_all_within(const Frame& frame) const {
  const Node& node = program_.nodes[static_cast<size_t>(frame.node)];
  return frame.count >= 0 && node.kind == kRegion && node.c != kMaxCharacters;
}

// What may be nothing may be nothing as often as is wanted, so that its least number is none. It may take some rounds
// to see that.
void Automaton::allow_no_repetitions() {
  constexpr int kMaxRounds = 32;
  std::vector<bool> may_be_nothing(program_.nodes.size(), false);  // from a node to the end of its rule
  const auto of_node = [&](int32_t node) { return may_be_nothing[static_cast<size_t>(node)]; };
  const auto of_rule = [&](int32_t rule) { return of_node(program_.starts[static_cast<size_t>(rule)]); };
  bool is_stable = false;
  for (int round = 0; round < kMaxRounds && !is_stable; ++round) {
    is_stable = true;
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      const Node& node = program_.nodes[i];
      bool found = node.kind == kReturn;
      if (node.kind == kSplit) {
        const auto first = program_.lists.begin() + node.a;
        found = std::any_of(first, first + node.b, of_node);
      } else if (node.kind == kCall || node.kind == kRegion || node.kind == kRepeat) {
        found = of_node(node.next) && ((node.kind == kRepeat && node.b <= 0) || of_rule(node.a));
      }
      is_stable = is_stable && found == may_be_nothing[i];
      may_be_nothing[i] = found;
    }
  }
  for (Node& node : program_.nodes) {
    if (node.kind == kRepeat && of_rule(node.a) && (node.c < 0 || node.b <= node.c)) node.b = 0;
  }
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
    if (node.kind == kReturn || node.kind == kWhenFull) return int64_t{0};
    if (node.kind == kSplit) {
      int64_t least = kNone;
      for (int32_t i = 0; i < node.b; ++i) {
        least = std::min(least, left[static_cast<size_t>(program_.lists[static_cast<size_t>(node.a + i)])]);
      }
      return least;
    }
    const int64_t next = left[static_cast<size_t>(node.next)];
    if (node.kind == kCall || node.kind == kRegion) return std::min(kNone, next + of_rule(node.a));
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
  if (horizon_ == 0 || place == kNowhere) return place;
  if (const auto known = nearby_.find(place); known != nearby_.end()) return known->second;
  Items moved = items(place);
  for (Item& item : moved) {
    item.frame =
        with_counts(item.frame, [this](const Node& node, int32_t count) { return far_from_bounds(node, count); });
  }
  const Place found = name(std::move(moved));
  nearby_.emplace(place, found);
  bytes_ += 48;
  return found;
}

// A count that stands for all that no text of the horizon's length takes to a bound.
int32_t Automaton::far_from_bounds(const Node& node, int32_t count) const {
  if (node.kind == kRegion) {
    const int64_t reached = count + (node.c == kMaxCharacters ? static_cast<int64_t>(horizon_) : 0);
    return reached < node.b ? 0 : count;
  }
  const int64_t least = least_[static_cast<size_t>(node.a)];
  if (least == 0) return count;
  // The one that is open, those that the text reads, and the one that then begins.
  const int64_t reached = count + static_cast<int64_t>(horizon_) / least + 2;
  if (reached < node.b) return 0;
  return count >= node.b && (node.c < 0 || reached < node.c) ? node.b : count;
}

// The frame with other counts: `change` gets the node of each that counts, and its count.
template <class Change>
int32_t Automaton::with_counts(int32_t number, const Change& change) {
  std::vector<Frame> stack;  // the innermost first
  for (; number >= 0; number = stack.back().parent) stack.push_back(frames_[static_cast<size_t>(number)]);
  int32_t outer = -1;
  for (auto it = stack.rbegin(); it != stack.rend(); ++it) {
    const int32_t count = it->count < 0 ? it->count : change(program_.nodes[static_cast<size_t>(it->node)], it->count);
    outer = frame({it->node, count, outer});
  }
  return outer;
}

// Adds to `todo` where an item leads without reading. True for one that is kept: it reads, or is the end of the grammar
// or of a region that counts tokens.
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
    case kRegion:
      todo.push_back({program_.starts[static_cast<size_t>(node.a)], frame({item.node, 0, item.frame}), 0});
      return false;
    case kRepeat:
      enter_repeat(item.node, 0, item.frame, todo);
      return false;
    case kReturn: {
      if (item.frame < 0) return true;
      const Frame outer = frames_[static_cast<size_t>(item.frame)];
      const Node& counted = program_.nodes[static_cast<size_t>(outer.node)];
      if (outer.count < 0) {
        todo.push_back({outer.node, outer.parent, 0});
      } else if (counted.kind == kRepeat) {
        enter_repeat(outer.node, outer.count + 1, outer.parent, todo);
      } else {
        todo.push_back({counted.next, outer.parent, 0});
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
  const Node& node = program_.nodes[static_cast<size_t>(number)];
  if (count >= node.b) todo.push_back({node.next, outer, 0});
  if (node.c >= 0 && count >= node.c) return;
  const int32_t kept = node.c < 0 ? std::min(count, node.b) : count;
  todo.push_back({program_.starts[static_cast<size_t>(node.a)], frame({number, kept, outer}), 0});
}

int32_t Automaton::frame(const Frame& wanted) {
  const auto [known, is_new] = frame_of_.try_emplace(wanted, static_cast<int32_t>(frames_.size()));
  const int32_t number = known->second;
  if (!is_new) return number;
  frames_.push_back(wanted);
  shapes_.push_back(number);
  bytes_ += 76;
  Frame shape = wanted;
  if (counts_up(wanted)) shape.count = 0;
  if (wanted.parent >= 0) shape.parent = shapes_[static_cast<size_t>(wanted.parent)];
  if (!(shape == wanted)) {
    const int32_t found = frame(shape);
    shapes_[static_cast<size_t>(number)] = found;
  }
  return number;
}

// Whether fewer allow more.
bool Automaton::counts_up(const Frame& frame) const {
  const Node& node = program_.nodes[static_cast<size_t>(frame.node)];
  return frame.count >= 0 && (node.kind == kRepeat || (node.kind == kRegion && node.c == kMaxCharacters));
}

}  // namespace turbomind
