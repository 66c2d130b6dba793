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

  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const override;

  size_t bytes() const { return bytes_.load(); }

 private:
  class Matcher;
  using MaskRef = std::shared_ptr<const GrammarState>;

  const std::string& bytes_of(int32_t token) const;
  // The state after a token.
  Automaton::State after(Automaton::State state, int32_t token) const;
  // The mask at a state, which also depends on the stop tokens.
  MaskRef mask_of(Automaton::State state, const std::vector<int32_t>& stop_token_ids) const;
  GrammarState find_mask(Automaton::State state, const std::vector<int32_t>& stop_token_ids) const;
  void allow_tokens(Automaton::State begun, std::vector<int32_t>& mask) const;
  void shrink_cache() const;

  const std::shared_ptr<const TokenTrie> tokens_;
  const SpecialTokens tags_;
  const size_t program_bytes_;
  // A cache that only the step thread uses, through matchers.
  mutable Automaton automaton_;
  mutable std::set<Matcher*> matchers_;
  mutable std::map<std::vector<int32_t>, std::unordered_map<Automaton::State, MaskRef>> masks_;  // by stop tokens
  mutable size_t mask_bytes_ = 0;
  mutable size_t costly_items_ = 0;  // processed for costly states, less what tokens earned back since
  mutable std::atomic<size_t> bytes_;
};

}  // namespace turbomind
