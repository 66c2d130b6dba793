// How a response is generated, as a request says it.
// Written by `make fields` from lmdeploy/messages.py and lmdeploy/serve/request.py; change that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fields/limits.h"

namespace turbomind {

struct GenerationFields {
  // Number of responses per prompt.
  int n = 1;
  // Maximum number of tokens to generate; None, as a tensor -1: up to the session length, which also bounds larger
  // values.
  int max_new_tokens = 512;
  // False: greedy decoding; the sampling fields are ignored.
  bool do_sample = false;
  // Nucleus sampling: sample from the most likely tokens whose cumulative probability reaches this value; 0: only
  // the most likely token.
  float top_p = 1.0f;
  // Sample from this many most likely tokens; 0: all.
  int top_k = 50;
  // Minimum probability of a token, relative to the most likely token.
  float min_p = 0.0f;
  // Sample from tokens whose logit is within this many standard deviations of the maximum; 0: all.
  float top_n_sigma = 0.0f;
  // Sampling temperature, which divides the logits; 0: greedy.
  float temperature = 0.8f;
  // Values over 1 penalize tokens that are already in the prompt or the response.
  float repetition_penalty = 1.0f;
  // Do not stop at the model's end-of-sequence tokens.
  bool ignore_eos = false;
  // Random seed of the request; default: a random one.
  std::optional<uint64_t> random_seed;
  // Strings that end the response, which does not include them.
  std::vector<std::string> stop_words;
  // Strings that are never generated.
  std::vector<std::string> bad_words;
  // Tokens that end the response, in addition to the model's; the response does not include them.
  std::vector<int32_t> stop_token_ids;
  // Tokens that are never generated.
  std::vector<int32_t> bad_token_ids;
  // Minimum number of tokens to generate: before, no stop condition applies.
  int min_new_tokens = 0;
  // Omit special tokens from the text.
  bool skip_special_tokens = true;
  // Return the log probability of each token and of this many most likely alternatives.
  std::optional<int> logprobs;
  // Format that the response must match: {"type": "text" | "json_object" | "json_schema" | "regex_schema" |
  // "grammar" | "lark" | "structural_tag"} and a member named like the type: json_schema {"schema": ...},
  // regex_schema "...", grammar "..." (EBNF), lark "...", structural_tag {...} (a format of xgrammar's, such as
  // triggered_tags).
  std::string response_format;
  // Subtracted from the logits of tokens that are in the response so far.
  float presence_penalty = 0.0f;
  // Subtracted from the logit of a token once per occurrence in the response so far.
  float frequency_penalty = 0.0f;
  // End what only repeats one span: at most 64 tokens, at least 4 times and for at least 256 tokens. reasoning:
  // reasoning, after which the answer begins; all: also the response, with finish_reason length; off: nothing.
  std::string repetition_detection = "reasoning";
  // Values added to the logits of tokens, by token id.
  std::vector<std::pair<int32_t, float>> logit_bias;
  // Return the log probability of each prompt token and of this many alternatives, in the outputs prompt_*; not in
  // a session. With max_new_tokens 0 nothing is generated.
  std::optional<int> prompt_logprobs;
  // Return the hidden state of the prompt's last token after the final norm, in the output embedding; nothing is
  // generated.
  bool output_embedding = false;
  // With output_embedding, for models with token types: index in input_ids of the first token of the second text of
  // a pair.
  std::optional<int> second_text_begin;
  // With output_embedding, for encoders: return the hidden state of each token instead of the pooled vector.
  bool output_token_embeddings = false;
  // Maximum number of reasoning tokens, after which the engine generates thinking_end_ids. Not with
  // response_format.
  std::optional<int> thinking_budget;
  // With thinking_end: text that begins reasoning; null: the prompt ends with it.
  std::string thinking_begin;
  // Text that ends reasoning, for thinking_budget and repetition_detection; with thinking_end_ids.
  std::string thinking_end;
  // With thinking_end: tokens that the engine generates to end reasoning.
  std::vector<int32_t> thinking_end_ids;
  // Prefixes are shared only among requests with the same salt; null: among all without one. Without a salt, the
  // time to first token reveals whether another caller has sent the same prefix.
  std::string cache_salt;
  // Id of the caller, which the gateway derives from the API key: response formats are compiled fairly across
  // callers, and draft tokens never come from other callers' texts.
  std::string caller;
  // The LoRA adapter to use; null: none.
  std::string lora_name;
};

// Calls visit(name, field, limits) for every field.
template <class Fields, class Visit>
void visit_fields(Fields& fields, Visit&& visit) {
  visit("n", fields.n, Limits{.low = 1, .high = 128});
  visit("max_new_tokens", fields.max_new_tokens, Limits{.low = -1});
  visit("do_sample", fields.do_sample, Limits{});
  visit("top_p", fields.top_p, Limits{.low = 0, .high = 1});
  visit("top_k", fields.top_k, Limits{.low = 0});
  visit("min_p", fields.min_p, Limits{.low = 0, .high = 1});
  visit("top_n_sigma", fields.top_n_sigma, Limits{.low = 0, .high = 100});
  visit("temperature", fields.temperature, Limits{.low = 0, .high = 2});
  visit("repetition_penalty", fields.repetition_penalty, Limits{.low = 0, .excludes_low = true, .high = 100});
  visit("ignore_eos", fields.ignore_eos, Limits{});
  visit("random_seed", fields.random_seed, Limits{});
  visit("stop_words", fields.stop_words, Limits{.max_items = 64, .max_bytes = 16384});
  visit("bad_words", fields.bad_words, Limits{.max_items = 64, .max_bytes = 256});
  visit("stop_token_ids", fields.stop_token_ids, Limits{.max_items = 1024});
  visit("bad_token_ids", fields.bad_token_ids, Limits{.max_items = 10000});
  visit("min_new_tokens", fields.min_new_tokens, Limits{.low = 0});
  visit("skip_special_tokens", fields.skip_special_tokens, Limits{});
  visit("logprobs", fields.logprobs, Limits{.low = 0, .high = 20});
  visit("response_format", fields.response_format, Limits{});
  visit("presence_penalty", fields.presence_penalty, Limits{.low = -2, .high = 2});
  visit("frequency_penalty", fields.frequency_penalty, Limits{.low = -2, .high = 2});
  visit("repetition_detection", fields.repetition_detection, Limits{.choices = "off, reasoning, all"});
  visit("logit_bias", fields.logit_bias, Limits{.max_items = 1024});
  visit("prompt_logprobs", fields.prompt_logprobs, Limits{.low = 0, .high = 20});
  visit("output_embedding", fields.output_embedding, Limits{});
  visit("second_text_begin", fields.second_text_begin, Limits{.low = 1});
  visit("output_token_embeddings", fields.output_token_embeddings, Limits{});
  visit("thinking_budget", fields.thinking_budget, Limits{.low = 0});
  visit("thinking_begin", fields.thinking_begin, Limits{.max_bytes = 256});
  visit("thinking_end", fields.thinking_end, Limits{.max_bytes = 256});
  visit("thinking_end_ids", fields.thinking_end_ids, Limits{.max_items = 64});
  visit("cache_salt", fields.cache_salt, Limits{.max_bytes = 256});
  visit("caller", fields.caller, Limits{.max_bytes = 256});
  visit("lora_name", fields.lora_name, Limits{.max_bytes = 256});
}

// Fields a request that has one of them samples by, unless do_sample says otherwise.
inline constexpr std::string_view kSamplingFields[] = {"top_p", "top_k", "min_p", "top_n_sigma", "temperature"};

// Other names of fields among the parameters of a Triton request: {theirs, ours}.
inline constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"max_tokens", "max_new_tokens"},
    {"seed", "random_seed"},
    {"stop", "stop_words"},
    {"min_tokens", "min_new_tokens"},
};

}  // namespace turbomind
