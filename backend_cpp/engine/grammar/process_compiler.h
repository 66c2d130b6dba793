// Compiles grammars: separate processes parse the formats, automata in this process follow the grammars.
//
// Grammars are cached while in use and after that (LRU, limited in number and bytes). Processes are reused, since
// starting one takes longer than parsing most formats.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/automaton_grammar.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_process.h"

namespace turbomind {

class ProcessCompiler final : public GrammarCompiler {
 public:
  static constexpr size_t kMaxKept = 64;
  static constexpr size_t kKeptBytes = size_t{512} << 20;
  static constexpr size_t kMaxIdle = 2;  // processes

  // `program`: the built grammar/main.cc. `seconds`: limit of processor time to parse a format. Throws Error.
  ProcessCompiler(std::string program, Vocabulary vocabulary, const SpecialTokens& special,
                  const std::vector<int32_t>& stop_token_ids, double seconds);

  std::shared_ptr<const Grammar> compile(const std::string& response_format, const Waiting& waiting) override;

 private:
  using Kept = std::list<std::pair<std::string, std::shared_ptr<const AutomatonGrammar>>>;
  using Process = std::unique_ptr<GrammarProcess>;

  std::shared_ptr<const AutomatonGrammar> find(const std::string& response_format);
  std::shared_ptr<const AutomatonGrammar> read_grammar(const std::string& payload) const;
  void require_known_tokens(const GrammarProgram& program, const SpecialTokens& marks) const;
  void keep(const std::string& response_format, const std::shared_ptr<const AutomatonGrammar>& grammar);
  Process take_idle();  // null: none
  void put_back(Process&& process);

  const std::string program_;
  const std::shared_ptr<const TokenTrie> tokens_;
  const double seconds_;
  const FileDescriptor vocabulary_;
  std::mutex mu_;
  Kept kept_;                  // guarded by mu_; latest first
  std::vector<Process> idle_;  // guarded by mu_
};

}  // namespace turbomind
