// Requests and outputs of the engine. Everything else in engine/ speaks these types.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/fields/generation_fields.h"
#include "model/embedding_range.h"

namespace turbomind {

using RequestId = uint64_t;
using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

inline constexpr int kUnlimited = -1;

enum class RequestedLogits { kNone, kGeneration, kAll };  // of the generated tokens; or of the prompt's too

// Logits processor: reads the tokens so far and changes the next token's logits [vocab]. Runs on the step thread; a
// throw ends the request.
using LogitsHook = std::function<void(const std::vector<int32_t>& tokens, float* logits, int vocab_size)>;

struct GenerationParams : GenerationFields {
  std::vector<std::vector<int32_t>> bad_tokens;  // token sequences that never occur, besides bad_token_ids
  LogitsHook logits_hook;
  bool stream = true;  // false: one output a response, when it is complete
  RequestedLogits logits = RequestedLogits::kNone;
  RequestedLogits hidden_states = RequestedLogits::kNone;
  bool scores_prompt = false;  // sum of -log p of the prompt's tokens; generates nothing

  // Whether logits or log probabilities of prompt tokens are requested.
  bool reads_prompt_outputs() const {
    return scores_prompt || prompt_logprobs || logits == RequestedLogits::kAll ||
           hidden_states == RequestedLogits::kAll;
  }
  // Whether the caller forbids, prefers or rewrites single tokens.
  bool weighs_tokens() const {
    return logits_hook || !(bad_words.empty() && bad_tokens.empty() && bad_token_ids.empty() && logit_bias.empty());
  }
  bool generates_nothing() const { return scores_prompt || output_embedding || max_new_tokens == 0; }
  // Whether the model has to run: else only a session takes the prompt.
  bool runs_model() const { return max_new_tokens != 0 || scores_prompt || prompt_logprobs || output_embedding; }
  bool is_greedy() const { return !do_sample || temperature == 0 || top_k == 1; }
};

// A conversation whose tokens the engine keeps between requests (engine/schedule/session_table.h).
struct SessionParams {
  uint64_t id = 0;
  bool start = false;  // forget what the session held, if it exists
  bool end = false;    // forget it after this request
  bool stop = false;   // cancel the session's running request instead of generating
  int step = -1;       // keep only this many of its tokens first; negative: all
};

enum class FinishReason { kNone, kStop, kLength, kRepetition, kCancelled, kError };

inline const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"", "stop", "length", "repetition", "cancelled", "error"};
  return kNames[static_cast<size_t>(reason)];
}

struct TokenLogprobs {
  float chosen;
  std::vector<std::pair<int32_t, float>> top;  // most likely first
};

// Phases of a response by the engine's clock, in seconds; negative: not reached.
struct EngineTimes {
  float queue = -1;    // from acceptance into the batch; of the request's first response
  float prompt = -1;   // from there to the response's first token
  float answer = -1;   // from there to its end
  float grammar = -1;  // before all that, until its grammar was compiled
  float load = 0;      // before all that, until the model was in memory
};

// Reason why a prefix hit ends.
enum class HitEnd : uint8_t {
  kNone,     // all of the prompt is known
  kDiffers,  // the longest known prompt has another token
  kEnds,     // the longest known prompt ends
  kEvicted,  // more was known
  kNotKept,  // more is known, but not what layers need to continue from there
  kOff,      // prefix caching is off
  kUnused,   // the request needs all tokens to be computed
};

// With include_cache_report: what the prefix cache had of a prompt, and why no more, in the scope of the request alone.
struct PrefixReport {
  int device = 0;  // tokens found there
  int host = 0;
  int disk = 0;
  int snapshot = 0;  // tokens up to the snapshot of the state that was used
  HitEnd end = HitEnd::kNone;
  int token = 0;    // where the hit could have gone on
  int seconds = 0;  // since the eviction
};

struct Output {
  RequestId request = 0;
  int index = 0;                   // which of the n responses
  std::string text;                // new text, whole UTF-8 characters
  std::vector<int32_t> token_ids;  // new tokens, without the one that ended the response
  FinishReason finish = FinishReason::kNone;
  bool is_final = false;  // nothing more comes for this request
  int input_token_len = 0;
  int history_token_len = 0;  // tokens of the session before this request
  int cached_token_len = 0;   // tokens of both that were found in the cache
  int generate_token_len = 0;
  EngineTimes times;                         // with the last output of a response
  std::optional<PrefixReport> cache_report;  // with that of the first response, if asked for
  int32_t stop_token = -1;                   // the token that ended the response, if one did
  std::string stop_string;                   // the one of stop_words that ended the response, if one did
  std::vector<TokenLogprobs> logprobs;       // of token_ids
  // With prompt_logprobs, once: of each token of `prompt`. The first one has none: NaN, and tokens of -1.
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<float> logits;         // [tokens, vocab]
  std::vector<float> hidden_states;  // [tokens, hidden], after the final norm
  std::vector<float> embedding;      // with output_embedding: [hidden], the same of the prompt's last token; or of each
  double score = 0;                  // with scores_prompt: sum of -log p
  int scored_tokens = 0;
  std::shared_ptr<const std::vector<int32_t>> prompt;  // all before the response, history included; if asked for
  ErrorCode error_code = ErrorCode::kInternal;         // with kError
  std::string error;                                   // with kError: what went wrong
};

// Called on the engine's output thread, in order, the last time with is_final. Must not call the engine's destructor
// and must not throw.
using OutputCallback = std::function<void(Output&&)>;

// A low-rank adapter that a request may name (engine/adapters/adapter_pool.h).
struct LoadedAdapter {
  std::string name;
  uint64_t id = 0;  // of this loading of it: what is loaded under the name later has another
  // The members below are for the step thread, once the request has been delivered.
  int slot = 0;                  // of AdapterSlots::set_adapter
  std::string content;           // AdapterFile::content(), where files keep the cache
  std::optional<Error> failure;  // the device had no memory for it
};

// Facts of a request until its last response has ended.
struct RequestInfo {
  RequestId id = 0;
  std::optional<SessionParams> session;
  std::shared_ptr<const LoadedAdapter> adapter;  // that params.lora_name names; filled in by the engine; null: none
  int priority = 0;                              // lower numbers are served first
  std::optional<Clock::time_point> deadline;     // unfinished then: ends with an error
  float grammar_seconds = -1;  // with a response format, from its submission until the grammar was compiled
};

struct Request : RequestInfo {
  std::vector<int32_t> input_ids;
  std::vector<EmbeddingRange> embeddings;  // in place of those of some of input_ids; ascending
  GenerationParams params;
  bool returns_prompt = false;  // Output::prompt is wanted; with prompt_logprobs it comes anyway
  OutputCallback on_output;
  Clock::time_point submitted;  // with a response format, filled in by the engine
};

}  // namespace turbomind
