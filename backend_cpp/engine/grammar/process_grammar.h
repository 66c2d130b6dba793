// A grammar that a process of its own has read.
//
// The automaton says which responses are at the same place, and what may come there: found once and kept, within a
// bound. Where it is given up, or the grammar has none, the process is asked, which then compiles the grammar.
//
//   accept(token) -> place -> known here?  yes: its state
//                                          no:  what the automaton allows, or the process gets the tokens that it has
//                                               not seen, and the question
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/grammar/automaton.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_connection.h"
#include "engine/grammar/token_trie.h"

namespace turbomind {

class ProcessGrammar final : public Grammar, public std::enable_shared_from_this<ProcessGrammar> {
 public:
  // `is_printable`: no token with a control character comes. `marks`: tokens without bytes that stand for a text here.
  // `compiled_bytes`: what the process keeps. The connection's process has read it.
  ProcessGrammar(std::shared_ptr<GrammarConnection> connection, std::shared_ptr<const TokenTrie> tokens,
                 Automaton::Program program, bool is_printable, SpecialTokens marks, size_t compiled_bytes);

  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const override;

  GrammarConnection& connection() const { return *connection_; }
  // What it takes, here and in its process.
  size_t bytes() const { return bytes_.load(); }

 private:
  class Matcher;

  // By place. What may come also depends on what ends a response.
  using States = std::unordered_map<Automaton::Place, std::shared_ptr<AskedState>>;

  const std::string& bytes_of(int32_t token) const;
  // Where a token leads to.
  Automaton::Place after(Automaton::Place place, int32_t token) const;
  void allow_tokens(Automaton::Place begun, std::vector<int32_t>& mask) const;
  bool find_allowed(Automaton::Place place, const std::vector<int32_t>& stop_token_ids, GrammarState& state) const;
  void count_bytes() const;

  const std::shared_ptr<GrammarConnection> connection_;
  const std::shared_ptr<const TokenTrie> tokens_;
  const bool is_printable_;
  const SpecialTokens marks_;
  const size_t compiled_bytes_;
  // Matchers of the step thread change what is learned, and nobody else looks at it.
  mutable Automaton automaton_;
  mutable std::map<std::vector<int32_t>, States> states_;  // by stop tokens
  mutable size_t state_bytes_ = 0;
  mutable size_t costly_items_ = 0;  // that the automaton has looked at
  mutable uint32_t last_id_ = 0;
  mutable std::atomic<size_t> bytes_;
};

}  // namespace turbomind
