#include "engine/check_request.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kMaxBadTokens = 10000;

template <class T>
void require(bool holds, const char* field, const char* expected, T given) {
  if (holds) return;
  std::ostringstream message;
  message << field << " must be " << expected << ", got " << given;
  throw invalid_argument(message.str());
}

void check_params(const GenerationParams& params, const RequestLimits& limits, const TokenTable& tokens) {
  visit_fields(params,
               [](const char* name, const auto& field, const Limits& range) { check_limits(name, field, range); });
  const auto require_token = [&](int32_t id, const char* field, const char* expected) {
    if (id < 0 || id >= limits.vocab_size) require(false, field, expected, tokens.quoted(id));
  };
  const auto require_tokens = [&](const std::vector<int32_t>& ids, const char* field) {
    for (const int32_t id : ids) require_token(id, field, "a token of the vocabulary");
  };
  require(params.min_new_tokens <= params.max_new_tokens || params.max_new_tokens == kUnlimited, "min_new_tokens",
          "at most max_new_tokens", params.min_new_tokens);
  require_tokens(params.stop_token_ids, "each of stop_token_ids");
  require_tokens(params.thinking_end_ids, "each of thinking_end_ids");
  require_tokens(params.bad_token_ids, "each of bad_token_ids");
  require(params.bad_tokens.size() <= kMaxBadTokens, "bad_words_list", "at most 10000 words", params.bad_tokens.size());
  for (const std::vector<int32_t>& word : params.bad_tokens) {
    require(!word.empty(), "each of bad_words_list", "at least one token long", word.size());
    for (const int32_t id : word) require_token(id, "each of bad_words_list", "made of tokens of the vocabulary");
  }
  for (const auto& [id, bias] : params.logit_bias) require_token(id, "each token of logit_bias", "in the vocabulary");
}

void check_prompt(const Request& request, const RequestLimits& limits, const TokenTable& tokens) {
  if (request.input_ids.empty() && !request.session) throw invalid_argument("input_ids must hold at least one token");
  for (const int32_t token : request.input_ids) {
    if (token < 0 || token >= limits.vocab_size) {
      throw invalid_argument("input_ids must be tokens of the vocabulary (0 to " +
                             std::to_string(limits.vocab_size - 1) + "), got " + tokens.quoted(token));
    }
  }
}

// Both keep sums over the images of any prompt, and its positions, far from the end of their types.
constexpr size_t kMaxTokensOfImage = 1 << 16;
constexpr int kLargestFrameStep = 1000;

void check_grid(const std::string& name, const EmbeddingRange& range, bool has_grid) {
  const ImageGrid& grid = range.grid;
  if (grid == ImageGrid{}) return;
  if (!has_grid) throw invalid_argument(name + " have a grid, but the positions of this model have one axis");
  const bool is_possible = grid.frames >= 1 && grid.rows >= 1 && grid.columns >= 1 &&
                           std::max({grid.frames, grid.rows, grid.columns}) <= range.count;
  if (!is_possible || int64_t{grid.frames} * grid.rows * grid.columns != range.count) {
    throw invalid_argument(name + " must have a grid of as many places, got " + std::to_string(grid.frames) + " x " +
                           std::to_string(grid.rows) + " x " + std::to_string(grid.columns));
  }
  if (!(grid.frame_step >= 0 && grid.frame_step <= kLargestFrameStep)) {
    throw invalid_argument(name + " must have frames at most " + std::to_string(kLargestFrameStep) +
                           " positions apart, got " + std::to_string(grid.frame_step));
  }
}

void check_rows(const std::string& name, const EmbeddingRange& range, const ImageTraits& traits) {
  const size_t rows = range.rows && range.rows->width == traits.width ? range.rows->count() : 0;
  const auto tokens = static_cast<size_t>(range.count);
  if (!traits.has_cross_attention && rows != tokens) {
    throw invalid_argument(name + " must have a row of " + std::to_string(traits.width) + " numbers for each token");
  }
  if (traits.has_cross_attention && (tokens != 1 || rows < 2 || rows > kMaxTokensOfImage)) {
    throw invalid_argument(name + " must be one token, with rows of " + std::to_string(traits.width) +
                           " numbers for it and for what is looked at");
  }
}

void check_embeddings(const Request& request, const RequestLimits& limits) {
  if (request.embeddings.empty()) return;
  const ImageTraits& traits = limits.images;
  if (traits.width == 0) throw invalid_argument("embeddings were given, but this model reads text only");
  int free_from = 0;
  for (const EmbeddingRange& range : request.embeddings) {
    const std::string name = "embeddings of tokens " + std::to_string(range.begin) + " to " +
                             std::to_string(static_cast<int64_t>(range.begin) + range.count);
    if (range.begin < free_from || range.count < 1 ||
        static_cast<size_t>(range.begin) + static_cast<size_t>(range.count) > request.input_ids.size()) {
      throw invalid_argument(name + " must be within input_ids, ascend and not overlap");
    }
    check_rows(name, range, traits);
    check_grid(name, range, traits.has_grid);
    if (traits.needs_whole && range.count > limits.max_whole_tokens) {
      throw invalid_argument(name + " must be at most " + std::to_string(limits.max_whole_tokens) +
                             ": they see each other, and a step holds no more; raise max_prefill_token_num");
    }
    free_from = range.end();
  }
}

void check_lengths(const Request& request, int session_len) {
  const GenerationParams& params = request.params;
  if (params.max_new_tokens > session_len) {
    throw invalid_argument("max_new_tokens must be at most the session length of " + std::to_string(session_len) +
                           " tokens, got " + std::to_string(params.max_new_tokens));
  }
  const auto prompt_len = static_cast<int64_t>(request.input_ids.size());
  if (prompt_len + (params.generates_nothing() ? 0 : 1) > session_len) {
    throw Error(ErrorCode::kTooLong, "the prompt must be shorter than the session length of " +
                                         std::to_string(session_len) + " tokens, got " + std::to_string(prompt_len));
  }
}

void check_combinations(const Request& request) {
  const GenerationParams& params = request.params;
  if (params.n > 1 && (request.session || params.generates_nothing())) {
    throw invalid_argument("n must be 1 in a session and where nothing is generated, got " + std::to_string(params.n));
  }
  if (params.thinking_end.empty() != params.thinking_end_ids.empty()) {
    throw invalid_argument("thinking_end and thinking_end_ids must be given together");
  }
  if (params.thinking_budget && (params.thinking_end.empty() || params.thinking_end_ids.empty())) {
    throw invalid_argument("thinking_budget needs thinking_end and thinking_end_ids");
  }
  if (params.thinking_budget && !params.response_format.empty()) {
    throw invalid_argument("thinking_budget is incompatible with response_format");
  }
  if (request.session && params.output_embedding) throw invalid_argument("output_embedding is invalid in a session");
  if (request.session && params.prompt_logprobs) throw invalid_argument("prompt_logprobs is invalid in a session");
}

// Checks the input of an encoder.
void check_text(const Request& request, const RequestLimits& limits) {
  const GenerationParams& params = request.params;
  if (params.second_text_begin && static_cast<size_t>(*params.second_text_begin) >= request.input_ids.size()) {
    throw invalid_argument("second_text_begin must be less than the " + std::to_string(request.input_ids.size()) +
                           " tokens of input_ids, got " + std::to_string(*params.second_text_begin));
  }
  if (params.output_token_embeddings && !(limits.is_pooling_model && params.output_embedding)) {
    throw invalid_argument("output_token_embeddings needs a model that is an encoder, and output_embedding");
  }
  if (!limits.is_pooling_model) return;
  if (!params.output_embedding) {
    throw invalid_argument("this model is an encoder: it makes vectors of texts and generates nothing");
  }
  if (request.session || params.reads_prompt_outputs()) {
    throw invalid_argument("this model is an encoder: of a text there is its vector alone, and there are no sessions");
  }
  if (const size_t tokens = request.input_ids.size(); tokens > static_cast<size_t>(limits.session_len)) {
    throw Error(ErrorCode::kTooLong, "a text must have at most the " + std::to_string(limits.session_len) +
                                         " tokens that the model reads, got " + std::to_string(tokens));
  }
}

void complete_stops(GenerationParams& params, const RequestLimits& limits, const TokenTable& tokens) {
  if (!params.ignore_eos) {
    params.stop_token_ids.insert(params.stop_token_ids.end(), limits.eos_token_ids.begin(), limits.eos_token_ids.end());
  }
  // A special token does not show up in the text, so as a stop string it is matched by id.
  std::erase_if(params.stop_words, [&](const std::string& word) {
    const int32_t token = tokens.find_special(word);
    if (token >= 0) params.stop_token_ids.push_back(token);
    return token >= 0;
  });
}

}  // namespace

void check_request(Request& request, const RequestLimits& limits, const TokenTable& tokens) {
  GenerationParams& params = request.params;
  check_params(params, limits, tokens);
  if (!request.session && !params.runs_model()) throw invalid_argument("max_new_tokens must be >= 1, got 0");
  check_prompt(request, limits, tokens);
  check_embeddings(request, limits);
  check_text(request, limits);
  check_lengths(request, limits.session_len);
  check_combinations(request);
  if (!params.response_format.empty() && !limits.has_grammars) {
    throw Error(ErrorCode::kUnavailable, "response_format is not available: xgrammar was not found");
  }
  complete_stops(params, limits, tokens);
}

}  // namespace turbomind
