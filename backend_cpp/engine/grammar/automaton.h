// Names the places that responses reach in a grammar, so that equal ones are found to be equal.
//
// The grammar as nodes, each with what it reads and where that leads; rules call each other as functions do. Where a
// response has come to is a set of items: a node, and the stack of nodes to return to. Stacks are shared lists and sets
// are kept once, so that a place is a small number and a byte that was read before at it costs one look-up. What has
// the same items has the same future; the reverse does not hold, and need not.
//
//   a call in last place leaves no frame; counts of an unbounded repetition stop at its least
//   an item is left out where another allows all that it does, such as one that has come there with fewer repetitions,
//   or two together, one with fewer and one with more
//   the rest of a character is nothing but its length where all characters that begin so may come
//   a region is a call with a limit: its frame counts tokens or characters, or it ends where it first may; some may end
//   at places (kWhenFull) only when they have no room for another token
//
// A grammar whose sets get large (deep ambiguity), or that takes more work than its budget, gets an Error; what was
// found by then stays. When what is kept gets large, it can be forgotten, but for the places that somebody is at.
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

  // Whether a program's numbers point into it, and there is a rule.
  static bool is_sound(const Program& program);
  // Throws Error for a program that is not sound, as does what is below where it takes too much. `horizon`: see
  // nearby().
  explicit Automaton(Program program, size_t horizon = 0);

  Place start() const { return start_; }
  // Where bytes lead.
  Place after(Place place, std::string_view bytes);
  Place after(Place place, uint8_t byte) {
    if (place == kNowhere) return kNowhere;
    const Place known = transitions_[slot(place, byte)];
    return known != kUnread ? known : read(place, byte);
  }

  // A place where a token begins, which its regions count. Those that have no room for it end here if they may, and
  // where they first may otherwise.
  Place begin_token(Place place);
  // Where a token leads from where it begins: read by its bytes, or by its number.
  Place after_token(Place begun, int32_t token, std::string_view bytes);
  // Calls `add` with whether it is of all tokens but those in a list, and the list's beginning and end, for each that
  // may be read by number where a token begins.
  template <class Add>
  void for_each_token_list(Place begun, const Add& add) const {
    if (!has_tokens_ || begun == kNowhere) return;
    for (const Item& item : items(begun)) {
      const Node& node = program_.nodes[static_cast<size_t>(item.node)];
      const int32_t* first = program_.lists.data() + node.a;
      if (node.kind == kToken) add(node.c != 0, first, first + node.b);
    }
  }

  // Items that may be looked at from now on.
  void set_budget(size_t items) { budget_ = items; }
  size_t budget() const { return budget_; }
  // Whether what is kept has become large. Then everything can be forgotten but some places, which get other numbers.
  bool is_large() const { return bytes_ > large_; }
  void forget_all_but(const std::vector<Place*>& kept);

  bool may_end(Place place) const;                      // the grammar
  std::optional<uint8_t> only_byte(Place place) const;  // the one that has to come, as far as it is seen

  // A place where the same texts of at most `horizon` bytes may come. Places share it that differ only in how often
  // something was repeated, and are so far from the least and the largest number that no such text reaches them. With a
  // horizon of 0, the place itself.
  Place nearby(Place place);

  size_t bytes() const { return bytes_; }

 private:
  struct Frame {
    int32_t node;    // to return to
    int32_t count;   // of a kRepeat: how often its rule was begun before; of a kRegion: what it counts; else -1
    int32_t parent;  // -1: the grammar ends
    bool operator==(const Frame&) const = default;
  };
  struct Item {
    int32_t node;
    int32_t frame;
    int32_t partial;  // of a kClass: code point so far, or kAnyRest, << 2 | bytes to come
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
  std::vector<int64_t> least_;  // bytes that a rule reads
  std::unordered_map<Place, Place> nearby_;
  std::vector<Frame> frames_;
  std::vector<int32_t> shapes_;  // of each frame: the one that has come as far with no repetitions and no characters
  std::unordered_map<Frame, int32_t, FrameHash> frame_of_;
  std::unordered_map<Items, Place, ItemsHash> place_of_;
  std::vector<const Items*> places_;     // keys of place_of_
  std::array<uint8_t, 256> class_of_{};  // of a byte: all of a class lead to the same
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
