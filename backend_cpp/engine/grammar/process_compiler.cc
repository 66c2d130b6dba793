#include "engine/grammar/process_compiler.h"

#include <algorithm>
#include <optional>

#include "engine/grammar/wire.h"

namespace turbomind {

ProcessCompiler::ProcessCompiler(std::string program, Vocabulary vocabulary, const SpecialTokens& special,
                                 const std::vector<int32_t>& stop_token_ids, double seconds)
    : program_(std::move(program)),
      tokens_(std::make_shared<const TokenTrie>(std::move(vocabulary))),
      seconds_(seconds),
      vocabulary_(vocabulary_file(tokens_->vocabulary(), special, stop_token_ids)) {
  put_back(std::make_unique<GrammarProcess>(program_, vocabulary_));
}

std::shared_ptr<const Grammar> ProcessCompiler::compile(const std::string& response_format, const Waiting& waiting) {
  if (std::shared_ptr<const AutomatonGrammar> known = find(response_format)) return known;
  waiting.on_begin();
  const std::string order =
      wire::Writer(wire::kFormat).put(static_cast<uint32_t>(seconds_ * 1000)).put(response_format).take();
  Process process;  // one that is not put back ends
  std::optional<GrammarProcess::Answer> answer;
  for (bool is_new = false; !process;) {
    process = take_idle();
    is_new = process == nullptr;
    if (is_new) process = std::make_unique<GrammarProcess>(program_, vocabulary_);
    try {
      process->send(order);
      answer = process->receive(waiting.is_wanted);
    } catch (const Error&) {
      if (is_new) throw;
      process = nullptr;  // it had ended while it was idle
    }
  }
  if (answer && answer->type == wire::kSlow) {
    if (!waiting.may_take_long()) return nullptr;
    answer = process->receive(waiting.is_wanted);
  } else if (answer) {
    put_back(std::move(process));
  }
  if (!answer) return nullptr;
  if (answer->type == wire::kReady) {
    std::shared_ptr<const AutomatonGrammar> grammar = read_grammar(answer->payload);
    keep(response_format, grammar);
    return grammar;
  }
  wire::Reader reader(answer->payload);
  const bool is_to_blame = reader.get<uint8_t>() != 0;
  throw Error(is_to_blame ? ErrorCode::kInvalidArgument : ErrorCode::kInternal, reader.text());
}

std::shared_ptr<const AutomatonGrammar> ProcessCompiler::find(const std::string& response_format) {
  const std::lock_guard lock(mu_);
  const auto known = std::ranges::find(kept_, response_format, &Kept::value_type::first);
  if (known == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, known);
  return known->second;
}

ProcessCompiler::Process ProcessCompiler::take_idle() {
  const std::lock_guard lock(mu_);
  if (idle_.empty()) return nullptr;
  Process process = std::move(idle_.back());
  idle_.pop_back();
  return process;
}

void ProcessCompiler::put_back(Process&& process) {
  const std::lock_guard lock(mu_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(process));
}

std::shared_ptr<const AutomatonGrammar> ProcessCompiler::read_grammar(const std::string& payload) const {
  wire::Reader reader(payload);
  SpecialTokens marks;
  for (auto left = reader.get<uint32_t>(); left > 0; --left) {
    const auto token = reader.get<int32_t>();
    const std::vector<char> text = reader.get<char>(reader.get<uint32_t>());
    marks.emplace_back(token, std::string(text.begin(), text.end()));
  }
  const bool is_printable = reader.get<uint8_t>() != 0;
  const auto nodes = reader.get<uint32_t>();
  const auto lists = reader.get<uint32_t>();
  const auto rules = reader.get<uint32_t>();
  GrammarProgram program;
  program.nodes = reader.get<GrammarProgram::Node>(nodes);
  program.lists = reader.get<int32_t>(lists);
  program.starts = reader.get<int32_t>(rules);
  program.least = reader.rest<int32_t>();
  require_known_tokens(program, marks);
  return std::make_shared<const AutomatonGrammar>(tokens_, std::move(program), is_printable, std::move(marks));
}

// Throws Error for numbers that are no tokens'.
void ProcessCompiler::require_known_tokens(const GrammarProgram& program, const SpecialTokens& marks) const {
  if (!program.is_sound()) throw internal_error("response_format: its program is broken");
  const auto size = static_cast<int32_t>(tokens_->vocabulary().size());
  const auto require = [&](int32_t token) {
    if (token >= 0 && token < size) return;
    throw invalid_argument("response_format: there is no token " + std::to_string(token) + "; the last one is " +
                           std::to_string(size - 1));
  };
  for (const auto& [token, text] : marks) require(token);
  for (const GrammarProgram::Node& node : program.nodes) {
    if (node.kind == GrammarProgram::kToken) std::ranges::for_each(program.list(node), require);
  }
}

void ProcessCompiler::keep(const std::string& response_format, const std::shared_ptr<const AutomatonGrammar>& grammar) {
  const std::lock_guard lock(mu_);
  kept_.emplace_front(response_format, grammar);
  size_t bytes = 0;
  for (const auto& entry : kept_) bytes += entry.second->bytes();
  while (kept_.size() > 1 && (kept_.size() > kMaxKept || bytes > kKeptBytes)) {
    bytes -= std::min(bytes, kept_.back().second->bytes());
    kept_.pop_back();
  }
}

}  // namespace turbomind
