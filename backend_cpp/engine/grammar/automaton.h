// Names the places that responses reach in a grammar, so that equal ones are found to be equal.
//
// The grammar as nodes, each with what it reads and where that leads; rules call each other as functions do. Where a
// response has come to is a set of items: a node, and the stack of nodes to return to. Stacks are shared lists and sets
// are kept once, so that a place is a small number and a byte that was read before at it costs one look-up. What has
// the same items has the same future; the reverse does not hold, and need not.
//
//   a call in last place leaves no frame; counts of an unbounded repetition stop at its least
//   the rest of a character is nothing but its length where all characters that begin so may come
//
// A grammar whose sets get large (deep ambiguity, left recursion), or that takes too much work, is given up: its places
// have no names then. When what is kept gets large, it can be forgotten: places named before are not known then.
//
// Used by the step thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace turbomind {

class Automaton {
 public:
  enum Kind : int32_t { kByte, kClass, kSplit, kCall, kRepeat, kReturn };
  struct Node {
    int32_t kind = kReturn;
    int32_t a = 0;  // kByte: the byte; kClass: first of its pairs; kSplit: first of its nodes; kCall, kRepeat: the rule
    int32_t b = 0;  // kClass: how many pairs; kSplit: how many nodes; kRepeat: the least count
    int32_t c = 0;  // kClass: whether it is what the pairs leave out; kRepeat: the largest count, -1: none
    int32_t next = 0;  // the node after it; not of kSplit and kReturn
  };
  struct Program {
    std::vector<Node> nodes;
    std::vector<int32_t> lists;   // pairs of the classes' code points, first and last; nodes of the splits
    std::vector<int32_t> starts;  // a node a rule; the first rule is the root
  };

  using Place = int32_t;
  static constexpr Place kNowhere = -1;  // it has no name

  // A program whose numbers point outside of it, or none at all, has no places. `horizon`: see nearby().
  explicit Automaton(Program program, size_t horizon = 0);

  Place start() const { return start_; }
  // Where bytes lead. kNowhere when the grammar is given up, or does not allow them.
  Place after(Place place, std::string_view bytes);
  Place after(Place place, uint8_t byte) {
    if (!is_known(place)) return kNowhere;
    const Place known = transitions_[slot(place, byte)];
    return known != kUnread ? known : read(place, byte);
  }

  // Items that may be looked at from now on; then the grammar is given up.
  void set_budget(size_t items) { budget_ = items; }
  size_t budget() const { return budget_; }
  void give_up();
  // Forgets all places when what is kept has become large.
  void trim();

  // Of a place that has a name and was not forgotten:
  bool is_known(Place place) const { return place >= first_ && !is_given_up_; }
  bool is_given_up() const { return is_given_up_; }
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
    int32_t count;   // of a kRepeat: how often its rule was begun before
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
  using Items = std::vector<Item>;
  struct FrameHash {
    size_t operator()(const Frame& frame) const;
  };
  struct ItemsHash {
    size_t operator()(const Items& items) const;
  };

  static constexpr Place kUnread = -2;
  enum class Share { kNone, kSome, kAll };

  static bool is_sound(const Program& program);
  void find_byte_classes();
  size_t slot(Place place, uint8_t byte) const {
    return static_cast<size_t>(place - first_) * classes_ + class_of_[byte];
  }
  Place read(Place place, uint8_t byte);
  void read(const Item& item, uint8_t byte, Items& reached) const;
  void read_character(const Item& item, uint8_t byte, Items& reached) const;
  Share in_class(const Node& node, int32_t first, int32_t last) const;
  Place close(Items&& reached);
  Place name(Items&& items);
  void find_least_lengths();
  int32_t far_from_bounds(int32_t frame);
  bool expand(const Item& item, Items& todo);
  void enter_repeat(int32_t node, int32_t count, int32_t frame, Items& todo);
  int32_t frame(const Frame& frame);
  const Items& items(Place place) const { return *places_[static_cast<size_t>(place - first_)]; }
  void forget();

  Program program_;
  const size_t horizon_;
  std::vector<int64_t> least_;  // bytes that a rule reads
  std::unordered_map<Place, Place> nearby_;
  std::vector<Frame> frames_;
  std::unordered_map<Frame, int32_t, FrameHash> frame_of_;
  std::unordered_map<Items, Place, ItemsHash> place_of_;
  std::vector<const Items*> places_;     // keys of place_of_
  std::array<uint8_t, 256> class_of_{};  // of a byte: all of a class lead to the same
  size_t classes_ = 0;
  std::vector<Place> transitions_;  // of each place, by class
  Place start_ = kNowhere;
  Place first_ = 0;  // the first that is not forgotten
  size_t bytes_ = 0;
  size_t budget_ = 0;
  bool is_given_up_ = false;
};

}  // namespace turbomind
