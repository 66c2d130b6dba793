#include "engine/speculative/draft_chain.h"

#include <utility>

namespace turbomind {

bool can_chain(ModelRunner& runner) {
  return runner.traits().chooses_tokens && runner.reserve({});
}

void chain_drafts(ModelRunner& runner, std::span<const DraftLink> links, std::vector<float> hidden, int count,
                  int vocab_size) {
  StepInput input;
  std::vector<TokenChoice> choices(links.size());
  const auto begin = [&](int step) {
    input.clear();
    for (size_t i = 0; i < links.size(); ++i) {
      const DraftLink& link = links[i];
      // Without what needs the tokens before: a draft may differ from what the model chooses.
      const SamplingParams& rule = link.work->rule(1 + step);
      SamplingParams& drawn = choices[i];
      drawn.is_greedy = rule.is_greedy;
      drawn.temperature = rule.temperature;
      drawn.top_k = rule.top_k;
      drawn.top_p = rule.top_p;
      drawn.min_p = rule.min_p;
      drawn.seed = rule.seed;
      drawn.draw = rule.draw;
      runner.reserve(choices[i]);
      const int position = link.position + step;
      input.spans.push_back({.first_row = static_cast<int>(i),
                             .count = 1,
                             .first_position = position,
                             .tables = &link.work->tables,
                             .prompt_len = link.prompt_len > 0 ? link.prompt_len : position + 1,
                             .choice = &choices[i]});
      input.tokens.push_back(step == 0 ? link.work->drafts.back() : in_flight_token(static_cast<int>(i)));
    }
    input.is_alongside_own = runner.traits().head.has_value();
    if (step == 0) input.alongside = std::move(hidden);
    runner.begin(input);
  };
  std::vector<bool> has_ended(links.size());
  if (count > 0 && !links.empty()) begin(0);
  for (int step = 0; step < count && !links.empty(); ++step) {
    if (step + 1 < count) begin(step + 1);
    const ChosenToken* chosen = runner.take().chosen;
    for (size_t i = 0; i < links.size(); ++i) {
      const int32_t token = chosen[i].token;
      if (token < 0 || token >= vocab_size) has_ended[i] = true;
      if (!has_ended[i]) links[i].work->drafts.push_back(token);
    }
  }
}

}  // namespace turbomind
