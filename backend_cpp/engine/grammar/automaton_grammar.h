// A grammar that was read, as its automaton follows it.
//
// The automaton says which responses are at the same place, and what may come there: found once and kept, within a
// bound. The step thread does that; so a response ends with an error where it would take too much.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/grammar/automaton.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_process.h"
#include "engine/grammar/token_trie.h"

namespace turbomind {

class AutomatonGrammar final : public Grammar, public std::enable_shared_from_this<AutomatonGrammar> {
 public:
  // `is_printable`: no token with a control character comes. `marks`: tokens without bytes that stand for a text here.
  AutomatonGrammar(std::shared_ptr<const TokenTrie> tokens, Automaton::Program program, bool is_printable,
                   SpecialTokens marks);

  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const override;

  size_t bytes() const { return bytes_.load(); }

 private:
  class Matcher;
  using StateRef = std::shared_ptr<const GrammarState>;

  const std::string& bytes_of(int32_t token) const;
  // Where a token leads to.
  Automaton::Place after(Automaton::Place place, int32_t token) const;
  // What may come at a place, which also depends on what ends a response.
  StateRef state_of(Automaton::Place place, const std::vector<int32_t>& stop_token_ids) const;
  GrammarState find_state(Automaton::Place place, const std::vector<int32_t>& stop_token_ids) const;
  void allow_tokens(Automaton::Place begun, std::vector<int32_t>& mask) const;
  void forget_some() const;

  const std::shared_ptr<const TokenTrie> tokens_;
  const bool is_printable_;
  const SpecialTokens marks_;
  const size_t program_bytes_;
  // Matchers of the step thread change what is learned, and nobody else looks at it.
  mutable Automaton automaton_;
  mutable std::set<Matcher*> matchers_;
  mutable std::map<std::vector<int32_t>, std::unordered_map<Automaton::Place, StateRef>> states_;  // by stop tokens
  mutable size_t state_bytes_ = 0;
  mutable size_t costly_items_ = 0;  // that the automaton has looked at, less what was paid back since
  mutable std::atomic<size_t> bytes_;
};

}  // namespace turbomind
