#include "model/worker/worker_choices.h"

#include <algorithm>
#include <bit>

namespace turbomind {

bool WorkerChoices::reserve(const SamplingMetadata& choice) {
  if (choice.logprobs > kMaxChoiceLogprobs || reserved_ == shape_.spans) return false;
  const bool recounts = choice.has_penalties() && histories_.must_recount(choice);
  const size_t words = reserved_words_ + (choice.biases != nullptr ? 2 * choice.biases->size() : 0) +
                       choice.forbidden.size() + (choice.mask != nullptr ? mask_words() : 0) +
                       (recounts ? choice.tokens->size() : 0);
  if (words > static_cast<size_t>(shape_.list_words)) return false;
  if (choice.has_penalties() && !histories_.reserve(choice)) return false;
  reserved_words_ = words;
  ++reserved_;
  return true;
}

void WorkerChoices::begin(const StepInput& input, StepChannel& channel, Order& order) {
  histories_.begin_step();
  reserved_words_ = 0;
  reserved_ = 0;
  std::transform(input.tokens.begin(), input.tokens.end(), channel.tokens(order.area), [this](int32_t token) {
    return token >= 0 ? token : -1 - choice_of_span_.at(static_cast<size_t>(span_of_in_flight(token)));
  });
  choice_of_span_.clear();
  int32_t used = 0;
  for (const StepSpan& span : input.spans) {
    choice_of_span_.push_back(order.choices);
    if (span.choice == nullptr) continue;
    ChannelChoice& sent = channel.choices(order.area)[order.choices++];
    sent = write(*span.choice, channel.lists(order.area), used);
    sent.row = span.first_token + span.count - 1;
  }
}

ChannelChoice WorkerChoices::write(const SamplingMetadata& choice, int32_t* lists, int32_t& used) {
  ChannelChoice sent;
  static_cast<SamplingParams&>(sent) = choice;
  sent.u = choice.is_greedy ? 0 : uniform(choice.seed, choice.draw);
  sent.logprobs = std::min(choice.logprobs, shape_.vocab_size);
  sent.first_list = used;
  if (choice.biases != nullptr) {
    sent.biases = static_cast<int32_t>(choice.biases->size());
    for (const auto& [token, bias] : *choice.biases) {
      lists[used++] = token;
      lists[used++] = std::bit_cast<int32_t>(bias);
    }
  }
  const auto add = [&](const int32_t* words, size_t count) {
    std::copy_n(words, count, lists + used);
    used += static_cast<int32_t>(count);
    return static_cast<int32_t>(count);
  };
  sent.forbidden = add(choice.forbidden.data(), choice.forbidden.size());
  if (choice.mask != nullptr) sent.mask_words = add(choice.mask, mask_words());
  if (choice.has_penalties()) {
    bool recounts = false;
    sent.history = histories_.count(choice, recounts);
    if (recounts) sent.counted = add(choice.tokens->data(), choice.tokens->size());
    sent.prompt_len = choice.prompt_len;
  }
  return sent;
}

const SampledToken* WorkerChoices::collect(const StepChannel& channel, int area, int count) {
  chosen_.clear();
  for (int i = 0; i < count; ++i) {
    const int first_top = i * kMaxChoiceLogprobs;
    chosen_.push_back({channel.chosen(area)[i], channel.logprobs(area)[i], channel.top_tokens(area) + first_top,
                       channel.top_logprobs(area) + first_top});
  }
  return chosen_.data();
}

}  // namespace turbomind
