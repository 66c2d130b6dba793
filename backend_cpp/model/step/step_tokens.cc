#include "model/step/step_tokens.h"

#include <algorithm>
#include <vector>

#include "model/step/image_tokens.h"

namespace turbomind {

namespace {

size_t row_bytes(bool is_there, int max_tokens) {
  return is_there ? static_cast<size_t>(max_tokens) * sizeof(int32_t) : 0;
}

size_t embedding_bytes(const ModelSpec& spec, int max_tokens) {
  if (!spec.images) return 0;
  const auto parts = static_cast<size_t>(1 + spec.images->deepstack_layers);
  return parts * static_cast<size_t>(max_tokens) * static_cast<size_t>(spec.hidden_size) * sizeof(float);
}

}  // namespace

StepTokens::StepTokens(Operators& ops, const ModelSpec& spec, int max_tokens)
    : ops_(ops),
      spec_(spec),
      tokens_(ops, row_bytes(true, max_tokens)),
      positions_(ops, row_bytes(spec.learned_positions > 0, max_tokens)),
      token_types_(ops, row_bytes(spec.encoder && spec.encoder->token_types > 0, max_tokens)),
      logit_rows_(ops, row_bytes(true, max_tokens)),
      embeddings_(ops, embedding_bytes(spec, max_tokens)),
      embedding_tokens_(ops, row_bytes(spec.images.has_value(), max_tokens)) {}

LogitRows StepTokens::stage(const StepInput& input) {
  stage_tokens(input);
  if (positions_.size() > 0) stage_positions(input);
  if (token_types_.size() > 0) stage_token_types(input);
  return stage_logit_rows(input);
}

void StepTokens::stage_tokens(const StepInput& input) {
  auto* tokens = tokens_.host<int32_t>();
  in_flight_.clear();
  for (size_t row = 0; row < input.tokens.size(); ++row) {
    const int32_t token = input.tokens[row];
    tokens[row] = std::max(token, 0);
    if (token < 0) {
      in_flight_.push_back({static_cast<int>(row), choice_of_span_.at(static_cast<size_t>(span_of_in_flight(token)))});
    }
  }
  if (spec_.layer_input) {
    for (const int row : embedded_tokens_) tokens[row] = spec_.layer_input->image_token;
  }
  tokens_.upload(ops_, input.tokens.size() * sizeof(int32_t));
}

// Positions beyond the table, which settings refuse, read its last row.
void StepTokens::stage_positions(const StepInput& input) {
  auto* positions = positions_.host<int32_t>();
  for (const StepSpan& span : input.spans) {
    for (int row = 0; row < span.count; ++row) {
      positions[span.first_token + row] = std::min(span.first_position + row, spec_.learned_positions - 1);
    }
  }
  positions_.upload(ops_, input.tokens.size() * sizeof(int32_t));
}

void StepTokens::stage_token_types(const StepInput& input) {
  auto* types = token_types_.host<int32_t>();
  for (const StepSpan& span : input.spans) {
    const int second = span.second_text > 0 && spec_.encoder->token_types > 1 ? span.second_text : span.count;
    std::fill_n(types + span.first_token, second, 0);
    std::fill_n(types + span.first_token + second, span.count - second, 1);
  }
  token_types_.upload(ops_, input.tokens.size() * sizeof(int32_t));
}

LogitRows StepTokens::stage_logit_rows(const StepInput& input) {
  LogitRows logit_rows;
  auto* next = logit_rows_.host<int32_t>();
  choice_of_span_.clear();
  for (const StepSpan& span : input.spans) {
    choice_of_span_.push_back(logit_rows.choices);
    if (span.choice == nullptr) continue;
    *next++ = span.first_token + span.count - 1;
    ++logit_rows.choices;
  }
  for (const StepSpan& span : input.spans) {
    const bool takes_first = spec_.encoder && spec_.encoder->pooling == TextPooling::kFirst;
    const int first = takes_first ? 0 : span.count - span.logit_rows();
    for (int row = first; row < first + span.logit_rows(); ++row) *next++ = span.first_token + row;
    logit_rows.requested += span.logit_rows();
  }
  logit_rows_.upload(ops_, static_cast<size_t>(logit_rows.count()) * sizeof(int32_t));
  return logit_rows;
}

int StepTokens::stage_embeddings(const StepInput& input) {
  const std::vector<EmbeddedToken> sources = embedded_tokens(input);
  embedded_tokens_.clear();
  for (const EmbeddedToken& source : sources) embedded_tokens_.push_back(source.row);
  if (sources.empty()) return 0;
  std::copy(embedded_tokens_.begin(), embedded_tokens_.end(), embedding_tokens_.host<int32_t>());
  auto* to = embeddings_.host<float>();
  const int parts = 1 + spec_.images->deepstack_layers;
  for (int part = 0; part < parts; ++part) {
    for (const EmbeddedToken& source : sources) {
      source.rows->read(source.source, part * spec_.hidden_size, spec_.hidden_size, to);
      to += spec_.hidden_size;
    }
  }
  embeddings_.upload(ops_, static_cast<size_t>(to - embeddings_.host<float>()) * sizeof(float));
  embedding_tokens_.upload(ops_, sources.size() * sizeof(int32_t));
  return static_cast<int>(sources.size());
}

void StepTokens::scatter_embeddings(const StepContext& step, int part, int count, float* hidden) const {
  const auto numbers = static_cast<size_t>(count) * static_cast<size_t>(spec_.hidden_size);
  step.ops.scatter_rows(embeddings_.device<float>() + static_cast<size_t>(part) * numbers,
                        embedding_tokens_.device<int32_t>(), count, spec_.hidden_size, hidden, part > 0);
}

}  // namespace turbomind
