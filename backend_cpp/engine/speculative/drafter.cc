#include "engine/speculative/drafter.h"

#include <utility>

namespace turbomind {

void Drafter::run(std::span<const Due> all, int width, bool continues_states, const OnLast& on_last) {
  StepInput input;
  std::vector<size_t> requested;
  const auto flush = [&] {
    if (input.tokens.empty()) return;
    input.continues_states = continues_states;
    const StepOutput output = runner_.forward(input);
    for (size_t i = 0; i < requested.size(); ++i) {
      on_last(requested[i], output.logits + i * static_cast<size_t>(runner_.traits().vocab_size),
              output.hidden + i * static_cast<size_t>(runner_.traits().hidden_size));
    }
    input.clear();
    requested.clear();
  };
  for (size_t index = 0; index < all.size(); ++index) {
    const Due& due = all[index];
    for (int done = 0; done < due.count;) {
      if (static_cast<int>(input.tokens.size()) == max_tokens_) flush();
      const auto first = static_cast<int>(input.tokens.size());
      const int count = std::min(due.count - done, max_tokens_ - first);
      const bool needs_output = due.needs_output && done + count == due.count;
      input.spans.push_back({.first_token = first,
                             .count = count,
                             .first_position = due.first_position + done,
                             .tables = due.tables,
                             .requested = needs_output ? SpanLogits::kLast : SpanLogits::kNone,
                             .prompt_len = due.prompt_len > 0 ? due.prompt_len : due.first_position + done + count});
      // An image's tokens may be any number.
      for (int i = 0; i < count; ++i) input.tokens.push_back(std::clamp(due.tokens[done + i], 0, vocab_size_ - 1));
      const float* states = due.hidden + static_cast<ptrdiff_t>(done) * width;
      input.alongside.insert(input.alongside.end(), states, states + static_cast<ptrdiff_t>(count) * width);
      if (needs_output) requested.push_back(index);
      done += count;
    }
  }
  flush();
}

void Drafter::chain(std::span<const Link> links, std::vector<float> hidden, int count) {
  StepInput input;
  std::vector<SamplingMetadata> choices(links.size());
  const auto launch = [&](int step) {
    input.clear();
    for (size_t i = 0; i < links.size(); ++i) {
      const Link& link = links[i];
      // Without what needs the tokens before: a draft may differ from what the model chooses.
      const SamplingParams& rule = link.of->generation->choice(1 + step);
      SamplingParams& drawn = choices[i];
      drawn.is_greedy = rule.is_greedy;
      drawn.temperature = rule.temperature;
      drawn.top_k = rule.top_k;
      drawn.top_p = rule.top_p;
      drawn.min_p = rule.min_p;
      drawn.seed = rule.seed;
      drawn.draw = rule.draw;
      runner_.reserve(choices[i]);
      const int position = link.position + step;
      input.spans.push_back({.first_token = static_cast<int>(i),
                             .count = 1,
                             .first_position = position,
                             .tables = link.of->tables,
                             .prompt_len = link.prompt_len > 0 ? link.prompt_len : position + 1,
                             .choice = &choices[i]});
      input.tokens.push_back(step == 0 ? link.of->drafts.tokens.back() : in_flight_token(static_cast<int>(i)));
    }
    input.continues_states = runner_.traits().head.has_value();
    if (step == 0) input.alongside = std::move(hidden);
    runner_.launch(input);
  };
  std::vector<bool> has_ended(links.size());
  if (count > 0 && !links.empty()) launch(0);
  for (int step = 0; step < count && !links.empty(); ++step) {
    if (step + 1 < count) launch(step + 1);
    const SampledToken* chosen = runner_.collect().chosen;
    for (size_t i = 0; i < links.size(); ++i) {
      const int32_t token = chosen[i].token;
      if (token < 0 || token >= vocab_size_) has_ended[i] = true;
      if (!has_ended[i]) links[i].of->drafts.tokens.push_back(token);
    }
  }
}

}  // namespace turbomind
