#include "engine/grammar/process_grammar.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace turbomind {

namespace {

constexpr size_t kStateBytes = size_t{16} << 20;  // of a grammar
// Items that the automaton may look at: to follow a response, and to find what may come, at a place and, of what many
// places cost beyond a little, in sum. A million takes about 50 ms.
constexpr size_t kFollowItems = 1'000'000;
constexpr size_t kPlaceItems = 100'000;
constexpr size_t kCheapItems = 8'000;
constexpr size_t kCostlyItems = 1'000'000;

size_t longest(const TokenTrie& tokens, const SpecialTokens& marks) {
  size_t longest = tokens.longest();
  for (const auto& [token, text] : marks) longest = std::max(longest, text.size());
  return longest;
}

}  // namespace

class ProcessGrammar::Matcher final : public GrammarMatcher {
 public:
  Matcher(std::shared_ptr<const ProcessGrammar> grammar, const std::vector<int32_t>& stop_token_ids)
      : grammar_(std::move(grammar)),
        stop_token_ids_(stop_token_ids),
        id_(++grammar_->last_id_),
        place_(grammar_->automaton_.start()) {}

  ~Matcher() override {
    if (is_open_) grammar_->connection_->send(wire::Writer(wire::kClose).put(id_).take());
  }

  const GrammarState* state() override {
    if (!state_) state_ = find_state();
    return state_->is_known.load(std::memory_order_acquire) ? &state_->state : nullptr;
  }

  bool knows_at_once() override { return place() != Automaton::kNowhere; }

  std::string forced_text(size_t most) override {
    std::string text;
    Automaton& automaton = grammar_->automaton_;
    automaton.set_budget(kFollowItems);
    for (Automaton::Place at = place(); text.size() < most && automaton.is_known(at);) {
      const std::optional<uint8_t> byte = automaton.only_byte(at);
      if (!byte) break;
      text.push_back(static_cast<char>(*byte));
      at = automaton.after(at, *byte);
    }
    return text;
  }

  std::optional<Error> failure() override {
    if (state() != nullptr) return std::nullopt;
    return grammar_->connection_->failure();
  }

  void accept(int32_t token) override {
    Automaton& automaton = grammar_->automaton_;
    automaton.set_budget(kFollowItems);
    place_ = grammar_->after(place(), token);
    tokens_.push_back(token);
    state_ = nullptr;
    automaton.trim();
  }

 private:
  // Where the response has come to. kNowhere: the automaton is given up.
  Automaton::Place place() {
    Automaton& automaton = grammar_->automaton_;
    if (!automaton.is_known(place_) && !automaton.is_given_up()) {  // it was forgotten
      automaton.set_budget(kFollowItems);
      place_ = automaton.start();
      for (const int32_t token : tokens_) place_ = grammar_->after(place_, token);
    }
    return automaton.is_known(place_) ? place_ : Automaton::kNowhere;
  }

  std::shared_ptr<AskedState> find_state() {
    // The same may come at all places nearby: a token is no longer than the horizon.
    const Automaton::Place near = grammar_->automaton_.nearby(place());
    if (near == Automaton::kNowhere) return ask();
    if (grammar_->state_bytes_ > kStateBytes) {
      grammar_->states_.clear();
      grammar_->state_bytes_ = 0;
    }
    std::shared_ptr<AskedState>& state = grammar_->states_[stop_token_ids_][near];
    if (state) return state;
    auto found = std::make_shared<AskedState>();
    if (!grammar_->find_allowed(near, stop_token_ids_, found->state)) return state = ask();
    found->is_known = true;
    grammar_->state_bytes_ += 128 + found->state.mask.size() * sizeof(int32_t);
    grammar_->count_bytes();
    return state = found;
  }

  std::shared_ptr<AskedState> ask() {
    auto asked = std::make_shared<AskedState>();
    GrammarConnection& connection = *grammar_->connection_;
    if (!is_open_) connection.send(wire::Writer(wire::kOpen).put(id_).put(stop_token_ids_).take());
    is_open_ = true;
    connection.send(wire::Writer(wire::kAdvance)
                        .put(id_)
                        .put(connection.expect(asked))
                        .put(tokens_.data() + sent_, tokens_.size() - sent_)
                        .take());
    sent_ = tokens_.size();
    return asked;
  }

  const std::shared_ptr<const ProcessGrammar> grammar_;
  const std::vector<int32_t> stop_token_ids_;
  const uint32_t id_;
  bool is_open_ = false;  // the process knows of it
  Automaton::Place place_;
  std::shared_ptr<AskedState> state_;  // null: not found yet
  std::vector<int32_t> tokens_;        // of the response
  size_t sent_ = 0;                    // of those, that the process has got
};

ProcessGrammar::ProcessGrammar(std::shared_ptr<GrammarConnection> connection, std::shared_ptr<const TokenTrie> tokens,
                               Automaton::Program program, bool is_printable, SpecialTokens marks,
                               size_t compiled_bytes)
    : connection_(std::move(connection)),
      tokens_(std::move(tokens)),
      is_printable_(is_printable),
      marks_(std::move(marks)),
      compiled_bytes_(compiled_bytes),
      automaton_(std::move(program), longest(*tokens_, marks_)),
      bytes_(compiled_bytes) {}

const std::string& ProcessGrammar::bytes_of(int32_t token) const {
  for (const auto& [mark, text] : marks_) {
    if (mark == token) return text;
  }
  return tokens_->bytes_of(token);
}

Automaton::Place ProcessGrammar::after(Automaton::Place place, int32_t token) const {
  return automaton_.after_token(automaton_.begin_token(place), token, bytes_of(token));
}

// Those that may come by their numbers, and marks by their texts.
void ProcessGrammar::allow_tokens(Automaton::Place begun, std::vector<int32_t>& mask) const {
  for (const auto& [token, text] : marks_) {
    if (automaton_.after(begun, text) != Automaton::kNowhere) allow(mask, token);
  }
  automaton_.for_each_token_list(begun, [&](bool is_all_but, const int32_t* first, const int32_t* last) {
    const auto vocabulary = static_cast<int32_t>(tokens_->vocabulary().size());
    const auto allow_one = [&](int32_t token) {
      if (!bytes_of(token).empty()) allow(mask, token);
    };
    for (int32_t token = 0; is_all_but && token < vocabulary; ++token) {
      if (std::find(first, last, token) == last) allow_one(token);
    }
    for (; !is_all_but && first != last; ++first) allow_one(*first);
  });
}

// False: it takes too much, and the automaton is given up.
bool ProcessGrammar::find_allowed(Automaton::Place place, const std::vector<int32_t>& stop_token_ids,
                                  GrammarState& state) const {
  const bool may_end = automaton_.may_end(place);
  state.is_finished = may_end && stop_token_ids.empty();
  if (state.is_finished) return true;
  state.mask.assign((tokens_->vocabulary().size() + 31) / 32, 0);
  automaton_.set_budget(kPlaceItems);
  if (const Automaton::Place begun = automaton_.begin_token(place); begun != Automaton::kNowhere) {
    tokens_->find_allowed(automaton_, begun, is_printable_, state.mask);
    allow_tokens(begun, state.mask);
  }
  const size_t items = kPlaceItems - automaton_.budget();
  if (items > kCheapItems) costly_items_ += items;
  if (costly_items_ > kCostlyItems) automaton_.give_up();
  if (automaton_.is_given_up()) return false;
  for (const int32_t token : stop_token_ids) {
    const uint32_t bit = uint32_t{1} << token % 32;
    int32_t& word = state.mask[static_cast<size_t>(token) / 32];
    word = static_cast<int32_t>(may_end ? static_cast<uint32_t>(word) | bit : static_cast<uint32_t>(word) & ~bit);
  }
  state.only_token = only_token(state.mask);
  return true;
}

void ProcessGrammar::count_bytes() const {
  bytes_ = compiled_bytes_ + state_bytes_ + automaton_.bytes();
}

std::unique_ptr<GrammarMatcher> ProcessGrammar::new_matcher(const std::vector<int32_t>& stop_token_ids) const {
  return std::make_unique<Matcher>(shared_from_this(), stop_token_ids);
}

}  // namespace turbomind
