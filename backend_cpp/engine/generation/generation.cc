#include "engine/generation/generation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "kernels/sampling.h"

namespace turbomind {

namespace {

// Random streams of a request's responses begin a multiple of the golden ratio apart.
constexpr uint64_t kSeedStride = 0x9E3779B97F4A7C15u;

SamplingParams sampling_params(const GenerationParams& params) {
  SamplingParams rule;
  static_cast<SamplingFields&>(rule) = params;
  rule.is_greedy = params.is_greedy();
  if (params.top_p == 0) {  // the most likely token reaches a share of 0
    rule.top_k = 1;
    rule.top_p = 1;
  }
  return rule;
}

// A token that never occurs is the shortest of such sequences.
GenerationParams with_bad_tokens(GenerationParams params) {
  for (const int32_t token : params.bad_token_ids) params.bad_tokens.push_back({token});
  params.bad_token_ids.clear();
  return params;
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

GenerationRules::GenerationRules(GenerationParams given, const OutputSpace& of, const std::vector<int32_t>& prompt,
                                 std::shared_ptr<const Grammar> constraint)
    : params(with_bad_tokens(std::move(given))),
      space(of),
      prompt_len(static_cast<int>(prompt.size())),
      sampling(sampling_params(params)),
      stop_strings(params.stop_words.begin(), params.stop_words.end()),
      bad_words(params.bad_words, params.bad_tokens, space.tokens),
      prompt_tokens(sampling, prompt, space.vocab_size),
      grammar(std::move(constraint)) {}

void PromptOutputs::take(const std::vector<int32_t>& tokens, int first, int count, const float* logits,
                         const float* hidden, Output& output) {
  if (rules_.params.output_token_embeddings) {  // of an encoder, whose text comes whole and has no logits
    output.embedding.assign(hidden,
                            hidden + static_cast<size_t>(count) * static_cast<size_t>(rules_.space.hidden_size));
    return;
  }
  if (needs_logprobs() && first == 0 && taken_ == 0) {
    const auto top = static_cast<size_t>(*rules_.params.prompt_logprobs);
    output.prompt_logprobs = {{std::nanf(""), {top, {-1, std::nanf("")}}}};  // nothing predicts the first token
  }
  for (int i = 0; i < count; ++i) {
    const int position = first + i;
    if (position < taken_ || position >= rules_.prompt_len - 1) continue;
    taken_ = position + 1;
    const auto at = static_cast<size_t>(i);
    take_token(tokens[static_cast<size_t>(position) + 1], logits + at * static_cast<size_t>(rules_.space.vocab_size),
               hidden + at * static_cast<size_t>(rules_.space.hidden_size), output);
  }
}

void PromptOutputs::take_token(int32_t next_token, const float* logits, const float* hidden, Output& output) const {
  const GenerationParams& params = rules_.params;
  const int vocab = rules_.space.vocab_size;
  if (params.scores_prompt) {
    output.score += negative_log_probability(logits, vocab, next_token);
    ++output.scored_tokens;
  }
  if (needs_logprobs()) {
    output.prompt_logprobs.push_back(log_probabilities(logits, vocab, next_token, *params.prompt_logprobs));
  }
  if (params.logits == RequestedLogits::kAll) output.logits.insert(output.logits.end(), logits, logits + vocab);
  if (params.hidden_states == RequestedLogits::kAll) {
    output.hidden_states.insert(output.hidden_states.end(), hidden, hidden + rules_.space.hidden_size);
  }
}

Generation::Generation(std::shared_ptr<const GenerationRules> rules, int index, uint64_t seed, uint64_t sequence,
                       std::vector<int32_t>& tokens)
    : rules_(std::move(rules)),
      tokens_(tokens),
      index_(index),
      penalties_(rules_->sampling, rules_->prompt_tokens, rules_->params.logit_bias),
      bad_word_states_(rules_->bad_words.begin()),
      thinking_(rules_->params),
      text_(rules_->stop_strings),
      prompt_outputs_(*rules_, index) {
  static_cast<SamplingParams&>(choice_) = rules_->sampling;
  choice_.seed = seed + static_cast<uint64_t>(index) * kSeedStride;
  choice_.sequence = sequence;
  choice_.tokens = &tokens_;
  choice_.prompt_len = rules_->prompt_len;
  choice_.biases = &rules_->params.logit_bias;
  choice_.logprobs = rules_->params.logprobs.value_or(-1);
  const GenerationParams& params = rules_->params;
  if (rules_->grammar) matcher_ = rules_->grammar->new_matcher(params.stop_token_ids, !params.weighs_tokens());
}

bool Generation::needs_logits() const {
  const GenerationParams& params = rules_->params;
  return params.logits_hook || params.logits != RequestedLogits::kNone ||
         params.hidden_states != RequestedLogits::kNone || params.generates_nothing();
}

const SamplingMetadata& Generation::choice(int in_flight) {
  const int position = generated() + in_flight;
  choice_.draw = static_cast<uint64_t>(position);
  choice_.in_flight = in_flight;
  choice_.forbidden = forbidden_tokens(position);
  choice_.mask = matcher_ ? matcher_->state().mask.data() : nullptr;
  if (const int32_t token = thinking_.forced(); token >= 0) {
    choice_.forbidden.clear();
    choice_.mask = mask_of_only(token);
  }
  return choice_;
}

FinishReason Generation::advance(Sampler& sampler, float* logits, const float* hidden) {
  const GenerationParams& params = rules_->params;
  const int vocab = rules_->space.vocab_size;
  if (params.output_embedding && !params.output_token_embeddings)
    unsent_.embedding.assign(hidden, hidden + rules_->space.hidden_size);
  if (params.generates_nothing()) {
    return params.scores_prompt || params.output_embedding ? FinishReason::kStop : FinishReason::kLength;
  }
  if (is_complete()) return FinishReason::kStop;
  std::vector<float> unchanged;  // for what is reported of the model's own distribution
  if (params.logprobs || params.logits != RequestedLogits::kNone) unchanged.assign(logits, logits + vocab);
  if (params.logits_hook) params.logits_hook(tokens_, logits, vocab);
  const SamplingMetadata& how = choice(0);
  penalties_.apply(logits);
  for (const int32_t token : how.forbidden) logits[token] = -std::numeric_limits<float>::infinity();
  if (how.mask != nullptr) apply_mask(how.mask, vocab, logits);
  const int32_t token = sampler.sample(logits, how);
  if (is_ended_by(token)) return FinishReason::kStop;
  report(token, unchanged, hidden);
  return append_and_jump(token);
}

// Adds what the caller wants to know of a token that was chosen.
void Generation::report(int32_t token, const std::vector<float>& logits, const float* hidden) {
  const GenerationParams& params = rules_->params;
  const OutputSpace& space = rules_->space;
  if (params.logprobs) {
    unsent_.logprobs.push_back(log_probabilities(logits.data(), space.vocab_size, token, *params.logprobs));
  }
  if (params.logits != RequestedLogits::kNone)
    unsent_.logits.insert(unsent_.logits.end(), logits.begin(), logits.end());
  if (params.hidden_states != RequestedLogits::kNone) {
    unsent_.hidden_states.insert(unsent_.hidden_states.end(), hidden, hidden + space.hidden_size);
  }
}

FinishReason Generation::advance(const SampledToken& chosen) {
  if (is_ended_by(chosen.token)) return FinishReason::kStop;
  if (const int top = choice_.logprobs; top >= 0) {
    TokenLogprobs& entry = unsent_.logprobs.emplace_back();
    entry.chosen = chosen.log_probability;
    for (int i = 0; i < std::min(top, rules_->space.vocab_size); ++i) {
      entry.top.emplace_back(chosen.top_tokens[i], chosen.top_log_probabilities[i]);
    }
  }
  return append_and_jump(chosen.token);
}

std::optional<Output> Generation::take_output(FinishReason finish) {
  unsent_.text += finish == FinishReason::kNone ? text_.take() : text_.take_rest();
  if (finish == FinishReason::kNone && !rules_->params.stream) return std::nullopt;
  unsent_.index = index_;
  unsent_.finish = finish;
  unsent_.generate_token_len = generated();
  unsent_.stop_token = stop_token_;
  if (text_.stopped_by() != nullptr) unsent_.stop_string = text_.stopped_by()->text();
  return std::exchange(unsent_, {});
}

// Tokens that limits other than a grammar's forbid at this position of the response.
std::vector<int32_t> Generation::forbidden_tokens(int position) const {
  std::vector<int32_t> forbidden;
  if (position < rules_->params.min_new_tokens) forbidden = rules_->params.stop_token_ids;
  rules_->bad_words.append_forbidden(bad_word_states_, tokens_, forbidden);
  return forbidden;
}

const int32_t* Generation::mask_of_only(int32_t token) {
  only_.assign((static_cast<size_t>(rules_->space.vocab_size) + 31) / 32, 0);
  only_[static_cast<size_t>(token) / 32] = static_cast<int32_t>(uint32_t{1} << (token % 32));
  return only_.data();
}

// Whether the request itself leaves no token to choose.
bool Generation::allows_nothing() const {
  const std::vector<int32_t> forbidden = forbidden_tokens(generated());
  const std::unordered_set<int32_t> banned(forbidden.begin(), forbidden.end());
  for (int32_t token = 0; token < rules_->space.vocab_size; ++token) {
    const bool is_masked = matcher_ && !(matcher_->state().mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1);
    if (!is_masked && banned.count(token) == 0) return false;
  }
  return true;
}

bool Generation::is_ended_by(int32_t token) {
  if (token < 0) {
    if (allows_nothing()) throw invalid_argument("no token satisfies the response format and the other limits");
    throw internal_error("the model produced logits that are not numbers");
  }
  if (!contains(rules_->params.stop_token_ids, token)) return false;
  stop_token_ = token;
  return true;
}

// Takes a token that is part of the response.
FinishReason Generation::append(int32_t token) {
  const GenerationParams& params = rules_->params;
  const TokenTable& table = rules_->space.tokens;
  tokens_.push_back(token);
  penalties_.record(token);
  unsent_.token_ids.push_back(token);
  if (matcher_) matcher_->accept(token);
  rules_->bad_words.advance(bad_word_states_, table.bytes(token));
  const bool is_endless_now = is_endless(token);
  thinking_.advance(token, table.bytes(token));
  const bool is_hidden = params.skip_special_tokens && table.is_special(token);
  const bool may_stop = generated() >= params.min_new_tokens;
  if (!is_hidden && text_.append(table.bytes(token), may_stop)) return FinishReason::kStop;
  if (is_complete()) return FinishReason::kStop;
  if (is_endless_now && may_stop) return FinishReason::kRepetition;
  return generated() >= params.max_new_tokens ? FinishReason::kLength : FinishReason::kNone;
}

// Ends reasoning that only repeats itself. Whether the response has to end for that reason.
bool Generation::is_endless(int32_t token) {
  const bool ends_response = rules_->params.repetition_detection == "all";
  if (!thinking_.is_reasoning() && !ends_response) return false;
  if (!repetition_.advance(token)) return false;
  if (!thinking_.is_reasoning()) return ends_response;
  thinking_.end();
  repetition_ = {};
  return false;
}

FinishReason Generation::append_and_jump(int32_t token) {
  FinishReason finish = append(token);
  if (!matcher_ || rules_->params.logprobs || needs_logits()) return finish;
  // Where the grammar leaves one token only, takes it without running the model; the next step computes all of them at
  // once.
  for (int i = 0; finish == FinishReason::kNone && i < kMaxForcedTokens; ++i) {
    const int32_t only = matcher_->state().only_token;
    if (only < 0) break;
    if (contains(rules_->params.stop_token_ids, only) || contains(forbidden_tokens(generated()), only)) break;
    finish = append(only);
  }
  return finish;
}

}  // namespace turbomind
