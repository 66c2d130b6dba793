// A pushdown automaton over bytes whose state sets are built lazily and interned, so that equal states are one number.
//
// The grammar is a graph of nodes: what a node reads, and the node after it; rules are called like functions. A place
// (state of a response) is a set of items: a node, and the stack of nodes to return to. Stacks are shared linked lists
// and item sets are interned, so a place is a small number and a known transition costs one lookup. Equal item sets
// accept the same continuations; the converse does not hold and is not needed.
//
//   tail calls push no frame; the count of an unbounded repetition saturates at its minimum
//   an item is dropped if another accepts everything that it does: the same with fewer repetitions, or two others, one
//   with fewer and one with more
//   a partial character is only its remaining length if every character with that prefix is allowed
//   a region is a call with a limit: its frame counts tokens or characters, or it ends as early as possible; some
//   regions may end at kWhenFull nodes only when there is no room for another token
//
// A grammar with large item sets (deep ambiguity), or that exceeds its budget, fails with an Error; places found before
// stay valid. Cached places can be dropped when they take much memory, except those in use.
//
// Used by the step thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace turbomind {

class Automaton {
 public:
  enum Kind : int32_t { kByte, kBytes, kClass, kToken, kSplit, kCall, kRegion, kRepeat, kReturn, kWhenFull };
  enum Limit : int32_t { kMaxTokens, kMaxCharacters, kShortest };
  struct Node {
    int32_t kind = kReturn;
    // kByte: the byte; kBytes, kClass: first of its pairs; kToken: first of its tokens; kSplit: first of its nodes;
    // kCall, kRegion, kRepeat: the rule
    int32_t a = 0;
    // How many pairs, tokens or nodes; kRegion: how many tokens or characters may begin in it; kRepeat: the least count
    int32_t b = 0;
    // kClass, kToken: whether it is what the list leaves out; kRegion: its Limit; kRepeat: the largest count, -1: none
    int32_t c = 0;
    int32_t next = 0;  // the node after it; not of kSplit, kReturn and kWhenFull
  };
  struct Program {
    std::vector<Node> nodes;
    std::vector<int32_t> lists;   // pairs of bytes or code points, first and last; tokens; nodes of the splits
    std::vector<int32_t> starts;  // a node a rule; the first rule is the root
  };

  using Place = int32_t;
  static constexpr Place kNowhere = -1;  // the grammar does not allow it

  // Whether all indices of a program are in range and it has a rule.
  static bool is_sound(const Program& program);
  // Throws Error for a program that is not sound; the functions below throw it if the budget is exceeded. `horizon`:
  // see nearby().
  explicit Automaton(Program program, size_t horizon = 0);

  Place start() const { return start_; }
  // The place after reading bytes.
  Place after(Place place, std::string_view bytes);
  Place after(Place place, uint8_t byte) {
    if (place == kNowhere) return kNowhere;
    const Place known = transitions_[slot(place, byte)];
    return known != kUnread ? known : read(place, byte);
  }

  // The place at the beginning of a token, which regions count. Regions without room for it end here if they may, or as
  // soon as they may.
  Place begin_token(Place place);
  // The place after a token, read by its bytes or by its id.
  Place after_token(Place begun, int32_t token, std::string_view bytes);
  // For each node that reads tokens by id, calls `add` with whether its list is negated, and the list's begin and end.
  template <class Add>
  void for_each_token_list(Place begun, const Add& add) const {
    if (!has_tokens_ || begun == kNowhere) return;
    for (const Item& item : items(begun)) {
      const Node& node = program_.nodes[static_cast<size_t>(item.node)];
      const int32_t* first = program_.lists.data() + node.a;
      if (node.kind == kToken) add(node.c != 0, first, first + node.b);
    }
  }

  // Sets the number of items that may still be processed.
  void set_budget(size_t items) { budget_ = items; }
  size_t budget() const { return budget_; }
  // Whether the cache is large. Then all places but `kept` can be dropped, which are renumbered.
  bool is_large() const { return bytes_ > large_; }
  void forget_all_but(const std::vector<Place*>& kept);

  bool may_end(Place place) const;                      // the grammar
  std::optional<uint8_t> only_byte(Place place) const;  // the only byte allowed, if it is known

  // A canonical place that accepts the same texts of at most `horizon` bytes. It is shared by places that differ only
  // in repetition counts so far from the minimum and maximum that no such text reaches them. With a horizon of 0, the
  // place itself.
  Place nearby(Place place);

  size_t bytes() const { return bytes_; }

 private:
  struct Frame {
    int32_t node;    // to return to
    int32_t count;   // kRepeat: how often its rule was begun before; kRegion: its counter; else -1
    int32_t parent;  // -1: the grammar ends
    bool operator==(const Frame&) const = default;
  };
  struct Item {
    int32_t node;
    int32_t frame;
    int32_t partial;  // kClass: (code point so far, or kAnyRest) << 2 | remaining bytes
    bool operator==(const Item&) const = default;
    auto operator<=>(const Item&) const = default;
  };
  struct Range {
    int64_t least, most;
  };
  using Items = std::vector<Item>;
  struct FrameHash {
    size_t operator()(const Frame& frame) const;
  };
  struct ItemsHash {
    size_t operator()(const Items& items) const;
  };

  static constexpr Place kUnread = -2;
  enum class Share { kNone, kSome, kAll };

  void find_byte_classes();
  size_t slot(Place place, uint8_t byte) const { return static_cast<size_t>(place) * classes_ + class_of_[byte]; }
  Place read(Place place, uint8_t byte);
  void read(const Item& item, uint8_t byte, Items& reached) const;
  void read_character(const Item& item, uint8_t byte, Items& reached) const;
  Share in_class(const Node& node, int32_t first, int32_t last) const;
  Place close(Items&& reached);
  Place name(Items&& items);
  void allow_no_repetitions();
  void find_least_lengths();
  template <class Change>
  int32_t with_counts(int32_t frame, const Change& change);
  int32_t far_from_bounds(const Node& node, int32_t count) const;
  bool count_character(Item& item);
  const Frame* ended_region(const Item& item, Limit limit) const;
  int32_t region_of_tokens(int32_t frame) const;
  void end_regions(const std::set<int32_t>& ended, Items& items) const;
  bool expand(const Item& item, Items& todo);
  void enter_repeat(int32_t node, int32_t count, int32_t frame, Items& todo);
  int32_t frame(const Frame& frame);
  bool counts_up(const Frame& frame) const;
  bool has_come_less_far(int32_t frame, int32_t other) const;
  Range to_come(const Frame& frame) const;
  bool allows_all_of(int32_t frame, int32_t other) const;
  bool allow_all_between(int32_t less, int32_t more, int32_t frame) const;
  bool ends_all_within(const Frame& frame) const;
  void leave_out_covered(Items& items) const;
  const Items& items(Place place) const { return *places_[static_cast<size_t>(place)]; }

  Program program_;
  const size_t horizon_;
  std::vector<int64_t> least_;  // minimum bytes of each rule
  std::unordered_map<Place, Place> nearby_;
  std::vector<Frame> frames_;
  std::vector<int32_t> shapes_;  // of each frame: the same frame with all counts 0
  std::unordered_map<Frame, int32_t, FrameHash> frame_of_;
  std::unordered_map<Items, Place, ItemsHash> place_of_;
  std::vector<const Items*> places_;     // keys of place_of_
  std::array<uint8_t, 256> class_of_{};  // equivalence class of a byte: same transitions everywhere
  size_t classes_ = 0;
  std::vector<Place> transitions_;  // of each place, by class
  Place start_ = kNowhere;
  size_t bytes_ = 0;
  size_t large_;  // of these
  size_t budget_ = 0;
  bool has_tokens_ = false;              // nodes of that kind
  bool has_limits_[kShortest + 1] = {};  // regions of each
};

}  // namespace turbomind
