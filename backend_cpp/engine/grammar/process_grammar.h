// A grammar that a process of its own follows.
//
// The automaton says which responses are at the same place; what may come there is asked for once and kept, within a
// bound. So the process is only asked about places that are new, and a response at a known place waits for nothing.
//
//   accept(token) -> place -> known here?  yes: its state
//                                          no:  the process gets the tokens that it has not seen, and the question
//
// At a place where nobody was before and much may come, the process is only asked when somebody cannot do without: a
// response that looks at its most likely tokens alone can ask the automaton about these, and most such places are never
// come to again.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/grammar/automaton.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_connection.h"

namespace turbomind {

using Vocabulary = std::vector<std::string>;  // the bytes of each token

class ProcessGrammar final : public Grammar, public std::enable_shared_from_this<ProcessGrammar> {
 public:
  // `is_printable`: no token with a control character comes. `compiled_bytes`: what the process keeps. The
  // connection's process has compiled it.
  ProcessGrammar(std::shared_ptr<GrammarConnection> connection, std::shared_ptr<const Vocabulary> vocabulary,
                 Automaton::Program program, bool is_printable, size_t compiled_bytes);

  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const override;

  GrammarConnection& connection() const { return *connection_; }
  // What it takes, here and in its process.
  size_t bytes() const { return bytes_.load(); }

 private:
  class Matcher;

  // States by place; null: somebody was there, and nobody has asked. What may come also depends on what ends a
  // response.
  using States = std::unordered_map<Automaton::Place, std::shared_ptr<AskedState>>;

  void count_bytes() const;

  const std::shared_ptr<GrammarConnection> connection_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const bool is_printable_;
  const size_t compiled_bytes_;
  // Matchers of the step thread change what is learned, and nobody else looks at it.
  mutable Automaton automaton_;
  mutable std::map<std::vector<int32_t>, States> states_;  // by stop tokens
  mutable size_t state_bytes_ = 0;
  mutable uint32_t last_id_ = 0;
  mutable std::atomic<size_t> bytes_;
};

}  // namespace turbomind
