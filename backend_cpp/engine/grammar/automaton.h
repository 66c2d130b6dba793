// A pushdown automaton over bytes whose state sets are built lazily and interned, so that equal states are one number.
//
// A place (state of a response) is a set of items: a node of the program (program.h), and the stack of nodes to return
// to (frames.h). Item sets are interned too, so a place is a small number and a known transition costs one lookup.
// Equal item sets accept the same continuations; the converse does not hold and is not needed.
//
//   tail calls push no frame; the count of an unbounded repetition saturates at its minimum
//   an item is dropped if others accept everything that it does
//   a partial character is only its remaining length if every character with that prefix is allowed
//   the frame of a region counts tokens
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

#include "engine/grammar/frames.h"
#include "engine/grammar/program.h"

namespace turbomind {

class Automaton {
 public:
  using Place = int32_t;
  static constexpr Place kNowhere = -1;  // the grammar does not allow it

  // Throws Error for a program that is not sound; the functions below throw it if the budget is exceeded. `horizon`:
  // see nearby().
  explicit Automaton(GrammarProgram program, size_t horizon = 0);
  Automaton(const Automaton&) = delete;

  Place start() const { return start_; }
  // The place at the beginning of a rule, of whose text nothing follows.
  Place at_rule(int32_t rule) { return close({{program_.start(rule), -1, 0}}); }
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
  // For each node that reads tokens by id, calls `add` with whether its list is negated, and the list.
  template <class Add>
  void for_each_token_list(Place begun, const Add& add) const {
    if (!has_tokens_ || begun == kNowhere) return;
    for (const Item& item : items(begun)) {
      const GrammarProgram::Node& node = program_.node(item.node);
      if (node.kind == GrammarProgram::kToken) add(node.c != 0, program_.list(node));
    }
  }

  // Sets the number of items that may still be processed.
  void set_budget(size_t items) { budget_ = items; }
  size_t budget() const { return budget_; }
  // Whether the cache is large. Then all places but `kept` can be dropped, which are renumbered.
  bool is_large() const { return bytes() > large_; }
  void forget_all_but(const std::vector<Place*>& kept);

  bool may_end(Place place) const;                      // the grammar
  std::optional<uint8_t> only_byte(Place place) const;  // the only byte allowed, if it is known

  // A canonical place that accepts the same texts of at most `horizon` bytes. It is shared by places that differ only
  // in repetition counts so far from the minimum and maximum that no such text reaches them. With a horizon of 0, the
  // place itself.
  Place nearby(Place place);

  size_t bytes() const { return bytes_ + frames_.bytes(); }

 private:
  using enum GrammarProgram::Kind;
  using enum GrammarProgram::Limit;
  using Limit = GrammarProgram::Limit;
  using Node = GrammarProgram::Node;
  struct Item {
    int32_t node;
    int32_t frame;
    int32_t partial;  // kClass: (code point so far, or kAnyRest) << 2 | remaining bytes
    bool operator==(const Item&) const = default;
    auto operator<=>(const Item&) const = default;
  };
  using Items = std::vector<Item>;
  struct ItemsHash {
    size_t operator()(const Items& items) const;
  };

  class Frontier;

  static constexpr Place kUnread = -2;
  enum class Share { kNone, kSome, kAll };

  void find_byte_classes();
  size_t slot(Place place, uint8_t byte) const { return static_cast<size_t>(place) * classes_ + class_of_[byte]; }
  Place read(Place place, uint8_t byte);
  void read(const Item& item, uint8_t byte, Items& reached) const;
  void read_character(const Item& item, uint8_t byte, Items& reached) const;
  Share share_of(const Node& node, int32_t code_point, int32_t to_come) const;
  Share in_class(const Node& node, int32_t first, int32_t last) const;
  Place close(Items&& reached);
  bool expand(const Item& item, Items& todo);
  void enter_repeat(int32_t node, int32_t count, int32_t frame, Items& todo);
  Place name(Items&& items);
  void leave_out_covered(Items& items) const;
  int32_t far_from_bounds(const Node& node, int32_t count) const;
  bool ends_region(const Item& item, Limit limit) const;
  int32_t region_of_tokens(int32_t frame) const;
  void end_regions(const std::set<int32_t>& ended, Items& items) const;
  const Items& items(Place place) const { return *places_[static_cast<size_t>(place)]; }

  const GrammarProgram program_;
  const size_t horizon_;
  Frames frames_{program_};
  std::unordered_map<Items, Place, ItemsHash> place_of_;
  std::vector<const Items*> places_;     // keys of place_of_
  std::array<uint8_t, 256> class_of_{};  // equivalence class of a byte: same transitions everywhere
  size_t classes_ = 0;
  std::vector<Place> transitions_;  // of each place, by class
  std::unordered_map<Place, Place> nearby_;
  Place start_ = kNowhere;
  size_t bytes_ = 0;  // but of frames
  size_t large_;      // of both
  size_t budget_;
  bool has_tokens_ = false;              // nodes of that kind
  bool has_limits_[kShortest + 1] = {};  // regions of each
};

}  // namespace turbomind
