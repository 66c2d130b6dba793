// What a caller asks of the engine and what it gets back. Everything else in engine/ speaks these types.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace turbomind {

using RequestId = uint64_t;

inline constexpr int kAllThatIsLeft = -1;

struct GenerationParams {
  int max_new_tokens = 512;  // kAllThatIsLeft: what the prompt leaves of the session length
  int min_new_tokens = 0;  // no stop condition holds before
  bool do_sample = false;
  float temperature = 0.8f;         // 0 is greedy
  float top_p = 1.0f;
  int top_k = 50;                   // 0: no limit; 1 is greedy
  float repetition_penalty = 1.0f;  // of every token of the prompt and the answer so far
  std::optional<uint64_t> random_seed;
  bool ignore_eos = false;
  std::vector<std::string> stop_words;
  std::vector<int32_t> stop_token_ids;
  bool skip_special_tokens = true;
  bool stream = true;  // false: one output, when the answer is complete

  bool is_greedy() const { return !do_sample || temperature == 0 || top_k == 1; }

  // Throws Error(kInvalidArgument) naming the field, what was expected and what was given.
  void validate(int vocab_size) const;
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// "", "stop", "length", "cancelled", "error".
const char* finish_reason_name(FinishReason reason);

struct Output {
  RequestId request = 0;
  std::string text;                // new text, whole UTF-8 characters
  std::vector<int32_t> token_ids;  // new tokens, without the one that ended the answer
  FinishReason finish = FinishReason::kNone;
  int input_token_len = 0;
  int generate_token_len = 0;
  std::string error;               // with kError: what went wrong
};

// Called on the engine's output thread, in order, the last time with finish != kNone. Must not call the engine's
// destructor and must not throw.
using OutputCallback = std::function<void(Output&&)>;

struct Request {
  RequestId id = 0;
  std::vector<int32_t> input_ids;
  GenerationParams params;
  OutputCallback on_output;
};

}  // namespace turbomind
