#include "engine/grammar/process_grammar.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace turbomind {

namespace {

constexpr size_t kStateBytes = size_t{16} << 20;  // of a grammar
constexpr size_t kMaxUnsent = 64;                 // tokens that the process gets later than they came
constexpr int kFewCharacters = 64;                // may come: the most likely tokens will hardly be among them

// Whether bytes are UTF-8 (RFC 3629), whole characters alone.
bool is_whole_text(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<uint8_t>(bytes[i++]);
    if (lead < 0x80) continue;
    const int more = lead >= 0xF5 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC2 ? 1 : 0;
    if (more == 0 || bytes.size() - i < static_cast<size_t>(more)) return false;
    // The first byte after it has bounds of its own: no overlong forms, no surrogates, nothing beyond U+10FFFF.
    const auto second = static_cast<uint8_t>(bytes[i]);
    const uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (second < least || second > most) return false;
    for (int k = 1; k < more; ++k) {
      if ((static_cast<uint8_t>(bytes[i + static_cast<size_t>(k)]) & 0xC0) != 0x80) return false;
    }
    i += static_cast<size_t>(more);
  }
  return true;
}

size_t longest(const Vocabulary& vocabulary) {
  size_t bytes = 0;
  for (const std::string& token : vocabulary) bytes = std::max(bytes, token.size());
  return bytes;
}

bool has_control_character(std::string_view bytes) {
  return std::ranges::any_of(bytes, [](unsigned char c) { return c < 0x20; });
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

  const GrammarState* peek() override {
    if (!state_ && !has_looked_) look();
    return state_ && state_->is_known.load(std::memory_order_acquire) ? &state_->state : nullptr;
  }

  bool check(const std::vector<int32_t>& tokens, std::vector<bool>& may_come) override {
    Automaton& automaton = grammar_->automaton_;
    if (!automaton.is_known(place_) || automaton.is_inside_character(place_)) return false;
    may_come.clear();
    automaton.begin_trial();
    for (const int32_t token : tokens) {
      const std::optional<bool> verdict = verdict_on(token);
      if (!verdict) break;
      may_come.push_back(*verdict);
    }
    automaton.end_trial();
    grammar_->count_bytes();
    return may_come.size() == tokens.size();
  }

  std::string forced_text(size_t most) override {
    std::string text;
    Automaton& automaton = grammar_->automaton_;
    automaton.begin_trial();
    for (Automaton::Place place = place_; text.size() < most && automaton.is_known(place);) {
      const std::optional<uint8_t> byte = automaton.only_byte(place);
      if (!byte) break;
      text.push_back(static_cast<char>(*byte));
      place = automaton.after(place, std::string_view(text).substr(text.size() - 1));
    }
    automaton.end_trial();
    return text;
  }

  size_t known_ahead(std::span<const int32_t> tokens) override {
    Automaton::Place place = place_;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!is_known_at(place)) return i;
      place = grammar_->automaton_.after(place, (*grammar_->vocabulary_)[static_cast<size_t>(tokens[i])]);
    }
    return tokens.size();
  }

  std::optional<Error> failure() override {
    if (state() != nullptr) return std::nullopt;
    return grammar_->connection_->failure();
  }

  void accept(int32_t token) override {
    unsent_.push_back(token);
    place_ = grammar_->automaton_.after(place_, (*grammar_->vocabulary_)[static_cast<size_t>(token)]);
    state_ = nullptr;
    has_looked_ = false;
    if (unsent_.size() >= kMaxUnsent) advance(0);
  }

 private:
  void look() {
    has_looked_ = true;
    Automaton& automaton = grammar_->automaton_;
    if (automaton.is_known(place_) && automaton.characters(place_) > kFewCharacters) {
      const auto [known, is_first] = grammar_->states_[stop_token_ids_].try_emplace(automaton.nearby(place_));
      if (is_first) {
        grammar_->state_bytes_ += 64;
        return;
      }
    }
    state_ = find_state();
  }

  // Whether what may come at a place has been asked and answered.
  bool is_known_at(Automaton::Place place) const {
    const auto states = grammar_->states_.find(stop_token_ids_);
    const Automaton::Place near = grammar_->automaton_.nearby(place);
    if (states == grammar_->states_.end() || near == Automaton::kNowhere) return false;
    const auto found = states->second.find(near);
    return found != states->second.end() && found->second && found->second->is_known.load(std::memory_order_acquire);
  }

  // Whether a token may come. None: the automaton cannot say.
  std::optional<bool> verdict_on(int32_t token) {
    Automaton& automaton = grammar_->automaton_;
    const std::string& bytes = (*grammar_->vocabulary_)[static_cast<size_t>(token)];
    if (std::ranges::find(stop_token_ids_, token) != stop_token_ids_.end()) {
      return bytes.empty() ? std::optional(automaton.may_end(place_)) : std::nullopt;
    }
    if (bytes.empty()) return false;  // it stands for no text
    if (grammar_->is_printable_ && has_control_character(bytes)) return false;
    if (!is_whole_text(bytes)) return std::nullopt;
    const bool is_allowed = automaton.after(place_, bytes) != Automaton::kNowhere;
    return automaton.is_known(place_) ? std::optional(is_allowed) : std::nullopt;  // it may be given up just now
  }

  std::shared_ptr<AskedState> find_state() {
    // The same may come at all places nearby: a token is no longer than the horizon.
    const Automaton::Place place = grammar_->automaton_.nearby(place_);
    if (place == Automaton::kNowhere) return ask();
    States& states = grammar_->states_[stop_token_ids_];
    if (const auto known = states.find(place); known != states.end() && known->second) return known->second;
    if (grammar_->state_bytes_ > kStateBytes) {
      grammar_->states_.clear();
      grammar_->state_bytes_ = 0;
    }
    std::shared_ptr<AskedState> asked = ask();
    grammar_->states_[stop_token_ids_][place] = asked;
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
    if (!is_open_) connection.send(wire::Writer(wire::kOpen).put(id_).put(stop_token_ids_).take());
    is_open_ = true;
    connection.send(wire::Writer(wire::kAdvance).put(id_).put(question).put(unsent_).take());
    unsent_.clear();
  }

  const std::shared_ptr<const ProcessGrammar> grammar_;
  const std::vector<int32_t> stop_token_ids_;
  const uint32_t id_;
  bool is_open_ = false;  // the process knows of it
  Automaton::Place place_;
  std::shared_ptr<AskedState> state_;  // null: not asked yet
  bool has_looked_ = false;            // whether this place is known, since it was come to
  std::vector<int32_t> unsent_;        // tokens that the process has not got
};

ProcessGrammar::ProcessGrammar(std::shared_ptr<GrammarConnection> connection,
                               std::shared_ptr<const Vocabulary> vocabulary, Automaton::Program program,
                               bool is_printable, size_t compiled_bytes)
    : connection_(std::move(connection)),
      vocabulary_(std::move(vocabulary)),
      is_printable_(is_printable),
      compiled_bytes_(compiled_bytes),
      automaton_(std::move(program), longest(*vocabulary_)),
      bytes_(compiled_bytes) {}

void ProcessGrammar::count_bytes() const {
  bytes_ = compiled_bytes_ + state_bytes_ + automaton_.bytes();
}

std::unique_ptr<GrammarMatcher> ProcessGrammar::new_matcher(const std::vector<int32_t>& stop_token_ids) const {
  return std::make_unique<Matcher>(shared_from_this(), stop_token_ids);
}

}  // namespace turbomind
