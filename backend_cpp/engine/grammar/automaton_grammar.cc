#include "engine/grammar/automaton_grammar.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kMaskBytes = size_t{16} << 20;  // of a grammar
// Items that the automaton may look at: to follow a token, and to find what may come. What finding it costs beyond a
// little is paid back a little with each token of a response. A million takes about 50 ms.
constexpr size_t kFollowItems = 100'000;
constexpr size_t kStateItems = 100'000;
constexpr size_t kCheapItems = 8'000;
constexpr size_t kCostlyItems = 1'000'000;
constexpr size_t kMaxForcedBytes = 48;  // more would hardly change how a text begins
constexpr size_t kPaidBack = 1'000;

size_t max_token_bytes(const TokenTrie& tokens, const SpecialTokens& tags) {
  size_t max_token_bytes = tokens.max_token_bytes();
  for (const auto& [token, text] : tags) max_token_bytes = std::max(max_token_bytes, text.size());
  return max_token_bytes;
}

}  // namespace

class AutomatonGrammar::Matcher final : public GrammarMatcher {
 public:
  Matcher(std::shared_ptr<const AutomatonGrammar> grammar, Settings settings)
      : grammar_(std::move(grammar)),
        settings_(std::move(settings)),
        state_(grammar_->automaton_.start()),
        mask_(grammar_->mask_of(state_, settings_)) {
    grammar_->matchers_.insert(this);
  }

  ~Matcher() override { grammar_->matchers_.erase(this); }

  const GrammarState& state() override { return *mask_; }

  void accept(int32_t token) override {
    state_ = grammar_->after(state_, token);
    grammar_->shrink_cache();
    mask_ = grammar_->mask_of(state_, settings_);
  }

  Automaton::State& automaton_state() { return state_; }

 private:
  const std::shared_ptr<const AutomatonGrammar> grammar_;
  const Settings settings_;
  Automaton::State state_;  // that the response has come to
  MaskRef mask_;
};

AutomatonGrammar::AutomatonGrammar(std::shared_ptr<const TokenTrie> tokens, GrammarProgram program, SpecialTokens tags)
    : tokens_(std::move(tokens)),
      tags_(std::move(tags)),
      program_bytes_(program.nodes.size() * sizeof(GrammarProgram::Node) +
                     (program.lists.size() + program.starts.size()) * sizeof(int32_t)),
      max_forced_bytes_(std::min(kMaxForcedBytes, max_token_bytes(*tokens_, tags_))),
      automaton_(std::move(program), max_token_bytes(*tokens_, tags_)),
      bytes_(program_bytes_ + automaton_.bytes()) {}

const std::string& AutomatonGrammar::bytes_of(int32_t token) const {
  for (const auto& [id, text] : tags_) {
    if (id == token) return text;
  }
  return tokens_->bytes_of(token);
}

Automaton::State AutomatonGrammar::after(Automaton::State state, int32_t token) const {
  automaton_.set_budget(kFollowItems);
  const Automaton::State next = automaton_.after_token(automaton_.begin_token(state), token, bytes_of(token));
  if (next == Automaton::kRejected) throw internal_error("a token outside the response format was chosen");
  costly_items_ -= std::min(costly_items_, kPaidBack);
  return next;
}

AutomatonGrammar::MaskRef AutomatonGrammar::mask_of(Automaton::State state, const Settings& settings) const {
  // States with one representative allow the same: a token is no longer than the horizon.
  const Automaton::State near = automaton_.representative(state);
  MaskRef& found = masks_[settings][near];
  if (!found) {
    found = std::make_shared<const GrammarState>(find_mask(near, settings));
    mask_bytes_ += 128 + found->mask.size() * sizeof(int32_t);
    bytes_ = program_bytes_ + mask_bytes_ + automaton_.bytes();
  }
  return found;
}

GrammarState AutomatonGrammar::find_mask(Automaton::State state, const Settings& settings) const {
  const bool is_accepting = automaton_.is_accepting(state);
  GrammarState found;
  found.is_finished = is_accepting && settings.stop_token_ids.empty();
  if (found.is_finished) return found;
  found.mask.assign((tokens_->vocabulary().size() + 31) / 32, 0);
  automaton_.set_budget(std::min(kStateItems, kCostlyItems - costly_items_ + kCheapItems));
  const size_t budget = automaton_.budget();
  const auto record_cost = [&] {
    const size_t items = budget - automaton_.budget();
    if (items > kCheapItems) costly_items_ += items - kCheapItems;
  };
  try {
    const Automaton::State begun = automaton_.begin_token(state);
    const int32_t forced = settings.fixes_spelling ? forced_token(begun) : -1;
    if (forced >= 0 && std::ranges::count(settings.stop_token_ids, forced) == 0) {
      allow(found.mask, forced);
    } else if (begun != Automaton::kRejected) {
      tokens_->find_allowed(automaton_, begun, found.mask);
      allow_tokens(begun, found.mask);
    }
  } catch (const Error&) {
    record_cost();
    throw;
  }
  record_cost();
  for (const int32_t token : settings.stop_token_ids) {
    const uint32_t bit = uint32_t{1} << token % 32;
    int32_t& word = found.mask[static_cast<size_t>(token) / 32];
    word = static_cast<int32_t>(is_accepting ? static_cast<uint32_t>(word) | bit : static_cast<uint32_t>(word) & ~bit);
  }
  found.only_token = only_token(found.mask);
  return found;
}

int32_t AutomatonGrammar::forced_token(Automaton::State begun) const {
  std::string text;
  for (Automaton::State at = begun; at != Automaton::kRejected && text.size() < max_forced_bytes_;) {
    const std::optional<uint8_t> byte = automaton_.only_byte(at);
    if (!byte) break;
    text.push_back(static_cast<char>(*byte));
    at = automaton_.after(at, *byte);
  }
  size_t end = text.size();  // of what comes before a special token
  for (const auto& [token, tag] : tags_) {
    if (text.starts_with(tag)) return token;
    end = std::min(end, text.find(tag));
  }
  const std::vector<int32_t> tokens = tokens_->encode(std::string_view(text).substr(0, end));
  return tokens.size() > 1 || (!tokens.empty() && end < text.size()) ? tokens.front() : -1;
}

// Those that may come by their numbers, and marks by their texts.
void AutomatonGrammar::allow_tokens(Automaton::State begun, std::vector<int32_t>& mask) const {
  for (const auto& [token, text] : tags_) {
    if (automaton_.after(begun, text) != Automaton::kRejected) allow(mask, token);
  }
  automaton_.for_each_token_list(begun, [&](bool is_all_but, std::span<const int32_t> listed) {
    const auto vocabulary = static_cast<int32_t>(tokens_->vocabulary().size());
    const auto allow_one = [&](int32_t token) {
      if (!bytes_of(token).empty()) allow(mask, token);
    };
    for (int32_t token = 0; is_all_but && token < vocabulary; ++token) {
      if (std::ranges::find(listed, token) == listed.end()) allow_one(token);
    }
    if (!is_all_but) std::ranges::for_each(listed, allow_one);
  });
}

// Clears the memo, when it has become large, but for the states of the responses.
void AutomatonGrammar::shrink_cache() const {
  if (mask_bytes_ <= kMaskBytes && !automaton_.is_cache_large()) return;
  masks_.clear();
  mask_bytes_ = 0;
  std::vector<Automaton::State*> kept;
  for (Matcher* matcher : matchers_) kept.push_back(&matcher->automaton_state());
  automaton_.drop_all_but(kept);
}

std::unique_ptr<GrammarMatcher> AutomatonGrammar::new_matcher(const std::vector<int32_t>& stop_token_ids,
                                                              bool fixes_spelling) const {
  return std::make_unique<Matcher>(shared_from_this(), Settings{stop_token_ids, fixes_spelling});
}

}  // namespace turbomind
