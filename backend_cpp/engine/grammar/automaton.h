// A pushdown automaton over bytes whose state sets are built lazily and interned, so that equal states are one number.
//
// A state is a set of items: a node of the program (program.h), and the stack of nodes to return
// to (frames.h). Item sets are interned too, so a state is a small number and a known transition costs one lookup.
// Equal item sets accept the same continuations; the converse does not hold and is not needed.
//
//   tail calls push no frame; the count of an unbounded repetition saturates at its minimum
//   an item is dropped if others accept everything that it does
//   the frame of a region counts tokens
//
// A grammar with large item sets (deep ambiguity), or that exceeds its budget, fails with an Error; states found before
// stay valid. Cached states can be dropped when they take much memory, except those in use.
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
  using State = int32_t;
  static constexpr State kRejected = -1;  // the grammar does not allow it

  // Throws Error for a program that is not sound; the functions below throw it if the budget is exceeded. `horizon`:
  // see representative().
  explicit Automaton(GrammarProgram program, size_t horizon = 0);
  Automaton(const Automaton&) = delete;

  State start() const { return start_; }
  // The state at the beginning of a rule, of whose text nothing follows.
  State rule_start(int32_t rule) { return close({{program_.start(rule), -1}}); }
  // The state after reading bytes.
  State after(State state, std::string_view bytes);
  State after(State state, uint8_t byte) {
    if (state == kRejected) return kRejected;
    const State known = transitions_[slot(state, byte)];
    return known != kUnknown ? known : read(state, byte);
  }

  // The state at the beginning of a token, which regions count. Regions without room for it end here if they may, or as
  // soon as they may.
  State begin_token(State state);
  // The state after a token, read by its bytes or by its id.
  State after_token(State begun, int32_t token, std::string_view bytes);
  // For each node that reads tokens by id, calls `add` with whether its list is negated, and the list.
  template <class Add>
  void for_each_token_list(State begun, const Add& add) const {
    if (!has_tokens_ || begun == kRejected) return;
    for (const Item& item : items(begun)) {
      const GrammarProgram::Node& node = program_.node(item.node);
      if (node.kind == GrammarProgram::kToken) add(node.c != 0, program_.list(node));
    }
  }

  // Sets the number of items that may still be processed.
  void set_budget(size_t items) { budget_ = items; }
  size_t budget() const { return budget_; }
  // Whether the cache is large. Then all states but `kept` can be dropped, which are renumbered.
  bool is_cache_large() const { return bytes() > large_; }
  void drop_all_but(const std::vector<State*>& kept);

  bool is_accepting(State state) const;                 // the grammar
  std::optional<uint8_t> only_byte(State state) const;  // the only byte allowed, if it is known

  // A canonical state that accepts the same texts of at most `horizon` bytes. It is shared by states that differ only
  // in repetition counts so far from the minimum and maximum that no such text reaches them. With a horizon of 0, the
  // state itself.
  State representative(State state);

  size_t bytes() const { return bytes_ + frames_.bytes(); }

 private:
  using enum GrammarProgram::Kind;
  using enum GrammarProgram::Limit;
  using Limit = GrammarProgram::Limit;
  using Node = GrammarProgram::Node;
  struct Item {
    int32_t node;
    int32_t frame;
    bool operator==(const Item&) const = default;
    auto operator<=>(const Item&) const = default;
  };
  using Items = std::vector<Item>;
  struct ItemsHash {
    size_t operator()(const Items& items) const;
  };

  class Frontier;

  static constexpr State kUnknown = -2;

  void find_byte_classes();
  size_t slot(State state, uint8_t byte) const { return static_cast<size_t>(state) * classes_ + class_of_[byte]; }
  State read(State state, uint8_t byte);
  void read(const Item& item, uint8_t byte, Items& reached) const;
  State close(Items&& reached);
  bool expand(const Item& item, Items& todo);
  void enter_repeat(int32_t node, int32_t count, int32_t frame, Items& todo);
  State intern(Items&& items);
  void remove_covered(Items& items) const;
  int32_t far_from_bounds(const Node& node, int32_t count) const;
  bool ends_region(const Item& item, Limit limit) const;
  int32_t region_of_tokens(int32_t frame) const;
  void end_regions(const std::set<int32_t>& ended, Items& items) const;
  const Items& items(State state) const { return *states_[static_cast<size_t>(state)]; }

  const GrammarProgram program_;
  const size_t horizon_;
  Frames frames_{program_};
  std::unordered_map<Items, State, ItemsHash> state_of_;
  std::vector<const Items*> states_;     // keys of state_of_
  std::array<uint8_t, 256> class_of_{};  // equivalence class of a byte: same transitions everywhere
  size_t classes_ = 0;
  std::vector<State> transitions_;  // of each state, by class
  std::unordered_map<State, State> representatives_;
  State start_ = kRejected;
  size_t bytes_ = 0;  // but of frames
  size_t large_;      // of both
  size_t budget_;
  bool has_tokens_ = false;              // nodes of that kind
  bool has_limits_[kShortest + 1] = {};  // regions of each
};

}  // namespace turbomind
