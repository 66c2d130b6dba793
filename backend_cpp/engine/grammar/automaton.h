// Names the places that responses reach in a grammar, so that equal ones are found to be equal.
//
// The grammar as nodes, each with what it reads and where that leads; rules call each other as functions do. Where a
// response has come to is a set of items: a node, and the stack of nodes to return to. Stacks are shared lists and sets
// are kept once, so that a place is a small number and a byte that was read before at it costs one look-up. What has
// the same items has the same future; the reverse does not hold, and need not.
//
//   a call in last place leaves no frame; counts of an unbounded repetition stop at its least
//
// A grammar whose sets get large (deep ambiguity, left recursion) is given up: its places have no names then. When what
// is kept gets large, it is forgotten: places named before have no successors then. What texts lead to that are only
// tried is not kept where there is not much room left.
//
// Used by the step thread.
#pragma once

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
  // Where `bytes` lead. kNowhere when the grammar is given up, or does not allow them.
  Place after(Place place, std::string_view bytes);

  // The same for texts that are tried, between these two; what they lead to has no name afterwards.
  void begin_trial();
  void end_trial();

  // Of a place that has a name and was not forgotten:
  bool is_known(Place place) const { return place >= first_ && !is_given_up_; }
  bool may_end(Place place) const;                      // the grammar
  bool is_inside_character(Place place) const;          // one of several bytes
  std::optional<uint8_t> only_byte(Place place) const;  // the one that has to come, as far as it is seen
  int64_t characters(Place place) const;                // how many may come, those of several kinds more than once

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
    int32_t partial;  // of a kClass: code point so far << 2 | bytes to come
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

  static bool is_sound(const Program& program);
  Place after(Place place, uint8_t byte);
  void read(const Item& item, uint8_t byte, Items& reached) const;
  bool is_in_class(const Node& node, int32_t code_point) const;
  Place close(Items&& reached);
  Place name(Items&& items);
  void find_least_lengths();
  int32_t far_from_bounds(int32_t frame);
  bool expand(const Item& item, Items& todo);
  void enter_repeat(int32_t node, int32_t count, int32_t frame, Items& todo);
  int32_t frame(const Frame& frame);
  const Items& items(Place place) const { return *places_[static_cast<size_t>(place - first_)]; }
  void forget();
  void give_up();

  Program program_;
  const size_t horizon_;
  std::vector<int64_t> least_;  // bytes that a rule reads
  std::unordered_map<Place, Place> nearby_;
  std::vector<Frame> frames_;
  std::unordered_map<Frame, int32_t, FrameHash> frame_of_;
  std::unordered_map<Items, Place, ItemsHash> place_of_;
  std::vector<const Items*> places_;                 // keys of place_of_
  std::unordered_map<uint64_t, Place> transitions_;  // place << 8 | byte
  Place start_ = kNowhere;
  Place first_ = 0;  // the first that is not forgotten
  size_t bytes_ = 0;
  bool is_given_up_ = false;
  // Of a trial: what there was before, and the keys of transitions_ that have come since.
  struct Trial {
    size_t frames, places, bytes;
    std::vector<uint64_t> transitions;
  };
  std::optional<Trial> trial_;
};

}  // namespace turbomind
