// Compiles grammars in their own processes, and reads what these say.
//
// What was compiled is kept while it is used and, within bounds of number and bytes, after that, the latest longest.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_host.h"
#include "engine/grammar/process_grammar.h"

namespace turbomind {

class ProcessCompiler final : public GrammarCompiler {
 public:
  static constexpr size_t kMaxKept = 64;
  static constexpr size_t kKeptBytes = size_t{512} << 20;
  static constexpr size_t kMaxProcesses = 256;

  // `program`: grammar/host.cc, built. `seconds`: of processor time that a compilation may take. Throws Error.
  ProcessCompiler(const std::string& program, Vocabulary vocabulary, const SpecialTokens& special,
                  const std::vector<int32_t>& stop_token_ids, double seconds);
  ~ProcessCompiler() override;

  std::shared_ptr<const Grammar> compile(const std::string& response_format, const Waiting& waiting) override;
  void stop() override { is_stopping_ = true; }
  void notify(std::function<void()> on_state) override { on_state_ = std::move(on_state); }

 private:
  using Kept = std::list<std::pair<std::string, std::shared_ptr<const ProcessGrammar>>>;

  std::shared_ptr<const ProcessGrammar> find(const std::string& response_format);
  std::shared_ptr<const ProcessGrammar> wait(const std::shared_ptr<GrammarConnection>& connection,
                                             const Waiting& waiting);
  std::shared_ptr<const ProcessGrammar> read_grammar(const std::shared_ptr<GrammarConnection>& connection,
                                                     const std::string& payload) const;
  void require_known_tokens(const Automaton::Program& program, const SpecialTokens& marks) const;
  void keep(const std::string& response_format, const std::shared_ptr<const ProcessGrammar>& grammar);
  void listen(const std::shared_ptr<GrammarConnection>& connection);
  void run();
  void serve(uint64_t number);

  const std::shared_ptr<const TokenTrie> tokens_;
  const double seconds_;
  GrammarHost host_;
  std::function<void()> on_state_;
  std::atomic<bool> is_stopping_{false};
  std::mutex mu_;
  Kept kept_;                                                                   // guarded by mu_; latest first
  std::unordered_map<uint64_t, std::weak_ptr<GrammarConnection>> connections_;  // guarded by mu_
  uint64_t last_process_ = 0;                                                   // guarded by mu_
  FileDescriptor poll_;
  FileDescriptor end_;  // wakes the thread for the last time
  std::thread thread_;
};

}  // namespace turbomind
