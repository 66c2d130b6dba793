// A parsed grammar that an automaton follows.
//
// The automaton identifies responses in the same state; their token masks are computed once and cached, within a bound.
// The step thread computes them, so a response whose masks exceed the budget ends with an error.
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
#include "engine/grammar/token_trie.h"

namespace turbomind {

class AutomatonGrammar final : public Grammar, public std::enable_shared_from_this<AutomatonGrammar> {
 public:
  // `tags`: special tokens that stand for a text.
  AutomatonGrammar(std::shared_ptr<const TokenTrie> tokens, GrammarProgram program, SpecialTokens tags);

  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids,
                                              bool fixes_spelling) const override;

  size_t bytes() const { return bytes_.load(); }

 private:
  class Matcher;
  using MaskRef = std::shared_ptr<const GrammarState>;
  // Of a matcher; masks depend on them.
  struct Settings {
    std::vector<int32_t> stop_token_ids;
    bool fixes_spelling;
    auto operator<=>(const Settings&) const = default;
  };

  const std::string& bytes_of(int32_t token) const;
  // The state after a token.
  Automaton::State after(Automaton::State state, int32_t token) const;
  MaskRef mask_of(Automaton::State state, const Settings& settings) const;
  GrammarState find_mask(Automaton::State state, const Settings& settings) const;
  // The first token of the text that is forced here, if more of that text follows it; -1: none.
  int32_t forced_token(Automaton::State begun) const;
  void allow_tokens(Automaton::State begun, std::vector<int32_t>& mask) const;
  void shrink_cache() const;

  const std::shared_ptr<const TokenTrie> tokens_;
  const SpecialTokens tags_;
  const size_t program_bytes_;
  const size_t max_forced_bytes_;  // that are looked at
  // A cache that only the step thread uses, through matchers.
  mutable Automaton automaton_;
  mutable std::set<Matcher*> matchers_;
  mutable std::map<Settings, std::unordered_map<Automaton::State, MaskRef>> masks_;
  mutable size_t mask_bytes_ = 0;
  mutable size_t costly_items_ = 0;  // processed for costly states, less what tokens earned back since
  mutable std::atomic<size_t> bytes_;
};

}  // namespace turbomind
