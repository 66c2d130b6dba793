#include "engine/grammar/process_grammar.h"

#include <utility>

namespace turbomind {

namespace {

constexpr size_t kStateBytes = size_t{16} << 20;  // of a grammar
constexpr size_t kMostUnseen = 64;                // tokens that the process gets later than they came

}  // namespace

class ProcessGrammar::Matcher final : public GrammarMatcher {
 public:
  Matcher(std::shared_ptr<const ProcessGrammar> grammar, const std::vector<int32_t>& stop_token_ids)
      : grammar_(std::move(grammar)),
        stop_token_ids_(stop_token_ids),
        answer_(++grammar_->last_answer_),
        place_(grammar_->automaton_.start()) {}

  ~Matcher() override {
    if (is_open_) grammar_->connection_->send(wire::Writer(wire::kClose).put(answer_).take());
  }

  const GrammarState* state() override {
    if (!state_) state_ = find_state();
    return state_->is_known.load(std::memory_order_acquire) ? &state_->state : nullptr;
  }

  std::optional<Error> failure() override {
    if (state() != nullptr) return std::nullopt;
    return grammar_->connection_->failure();
  }

  void accept(int32_t token) override {
    unseen_.push_back(token);
    place_ = grammar_->automaton_.after(place_, (*grammar_->vocabulary_)[static_cast<size_t>(token)]);
    state_ = nullptr;
    if (unseen_.size() >= kMostUnseen) advance(0);
  }

 private:
  std::shared_ptr<AskedState> find_state() {
    if (place_ == Automaton::kNowhere) return ask();
    States& states = grammar_->states_[stop_token_ids_];
    if (const auto known = states.find(place_); known != states.end()) return known->second;
    if (grammar_->state_bytes_ > kStateBytes) {
      grammar_->states_.clear();
      grammar_->state_bytes_ = 0;
    }
    std::shared_ptr<AskedState> asked = ask();
    grammar_->states_[stop_token_ids_].emplace(place_, asked);
    grammar_->state_bytes_ += 128 + grammar_->vocabulary_->size() / 8;
    grammar_->count_bytes();
    return asked;
  }

  std::shared_ptr<AskedState> ask() {
    auto asked = std::make_shared<AskedState>();
    advance(grammar_->connection_->expect(asked));
    return asked;
  }

  void advance(uint32_t question) {
    GrammarConnection& connection = *grammar_->connection_;
    if (!is_open_) connection.send(wire::Writer(wire::kOpen).put(answer_).put(stop_token_ids_).take());
    is_open_ = true;
    connection.send(wire::Writer(wire::kAdvance).put(answer_).put(question).put(unseen_).take());
    unseen_.clear();
  }

  const std::shared_ptr<const ProcessGrammar> grammar_;
  const std::vector<int32_t> stop_token_ids_;
  const uint32_t answer_;
  bool is_open_ = false;  // the process knows of it
  Automaton::Place place_;
  std::shared_ptr<AskedState> state_;  // null: not asked yet
  std::vector<int32_t> unseen_;        // tokens that the process has not got
};

ProcessGrammar::ProcessGrammar(std::shared_ptr<GrammarConnection> connection,
                               std::shared_ptr<const Vocabulary> vocabulary, Automaton::Program program,
                               size_t compiled_bytes)
    : connection_(std::move(connection)),
      vocabulary_(std::move(vocabulary)),
      compiled_bytes_(compiled_bytes),
      automaton_(std::move(program)),
      bytes_(compiled_bytes) {}

void ProcessGrammar::count_bytes() const {
  bytes_ = compiled_bytes_ + state_bytes_ + automaton_.bytes();
}

std::unique_ptr<GrammarMatcher> ProcessGrammar::new_matcher(const std::vector<int32_t>& stop_token_ids) const {
  return std::make_unique<Matcher>(shared_from_this(), stop_token_ids);
}

}  // namespace turbomind
