// Sampling of worker processes: a step's sampling metadata for the workers, and the sampled tokens.
#pragma once

#include <vector>

#include "device/token_histories.h"
#include "device/token_sampler.h"
#include "model/model_runner.h"
#include "model/worker/step_channel.h"

namespace turbomind {

inline constexpr int kMaxWorkerHistories = 64;

class WorkerChoices {
 public:
  explicit WorkerChoices(const ChannelShape& shape) : shape_(shape) {}

  // Whether the step that begins next has room for it.
  bool reserve(const SamplingMetadata& choice);
  // Writes the tokens of a step that begins, those in flight as the worker knows them, and its choices.
  void begin(const StepInput& input, StepChannel& channel, Order& order);
  // The `count` tokens that a step which is done has chosen, in span order; valid until the next call.
  const SampledToken* collect(const StepChannel& channel, int area, int count);

 private:
  size_t mask_words() const { return (static_cast<size_t>(shape_.vocab_size) + 31) / 32; }
  ChannelChoice write(const SamplingMetadata& choice, int32_t* lists, int32_t& used);

  ChannelShape shape_;
  TokenHistories histories_{kMaxWorkerHistories};
  size_t reserved_words_ = 0;        // for the next step
  int reserved_ = 0;                 // choices
  std::vector<int> choice_of_span_;  // of the step that began last
  std::vector<SampledToken> chosen_;
};

}  // namespace turbomind
