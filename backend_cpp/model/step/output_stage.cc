#include "model/step/output_stage.h"

#include <algorithm>

#include "model/text_encoder.h"

namespace turbomind {

namespace {

// Logits at once on a device with its own memory: a chunk of 256 rows of a large vocabulary is 128 MiB.
constexpr int kDeviceLogitRows = 256;

size_t float_bytes(int rows, int width) {
  return static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float);
}

}  // namespace

OutputStage::OutputStage(Operators& ops, const Shard& shard, const ModelSpec& spec, const Weights& weights,
                         int max_tokens)
    : ops_(ops),
      spec_(spec),
      weights_(weights),
      rank_(shard.rank),
      vocab_part_(shard.vocab_part),
      is_divided_(shard.count > 1),
      logit_rows_at_once_(ops.shares_host_memory() ? max_tokens : std::min(max_tokens, kDeviceLogitRows)),
      rows_(ops, max_tokens, spec.hidden_size),
      logits_(ops, spec.encoder ? 0 : logit_rows_at_once_, logit_count(spec)),
      logit_parts_(
          float_buffer(ops, is_divided_ && !spec.encoder ? logit_rows_at_once_ : 0, shard.count * shard.vocab_part)) {
  if (spec.head && spec.head->kind == HeadKind::kEagle3) streams_ = FloatRows(ops, max_tokens, spec.hidden_size);
  if (ops.shares_host_memory()) return;
  if (!spec.encoder) sampler_ = ops.make_sampler(logit_count(spec), max_tokens);
  if (rank_ != 0) return;
  if (!spec.encoder) host_logits_ = AlignedBuffer(float_bytes(max_tokens, logit_count(spec)));
  host_rows_ = AlignedBuffer(float_bytes(max_tokens, spec.hidden_size));
}

int OutputStage::computed_at_once(int count) const {
  return spec_.encoder ? 0 : std::min(count, logit_rows_at_once_);
}

void OutputStage::begin(const StepInput& input, StepTokens& rows) {
  if (!sampler_) return;
  std::vector<const SamplingMetadata*> choices;
  for (const StepSpan& span : input.spans) {
    if (span.choice != nullptr) choices.push_back(span.choice);
  }
  sampler_->begin(choices);
  if (!rows.in_flight().empty()) sampler_->scatter(rows.in_flight(), rows.tokens());
}

void OutputStage::compute(const StepContext& step, const float* hidden, const int32_t* logit_rows, int count,
                          int projected) {
  if (spec_.encoder && !takes_one(spec_.encoder->pooling)) return;  // all rows of a text go into its vector
  const auto gather = [&](float* to) {
    if (logit_rows == nullptr) return ops_.copy(hidden, float_bytes(count, spec_.hidden_size), to);
    ops_.gather_rows(hidden, logit_rows, count, spec_.hidden_size, to);
  };
  gather(rows_);
  if (has_final_norm(spec_)) {
    if (streams_.size() > 0) gather(streams_);
    ops_.norm(weights_.final_norm.view, rows_, count, spec_.hidden_size, rows_);
  }
  project(0, projected, step.has_barriers);
}

void OutputStage::project(int first, int count, bool has_barriers) {
  if (count == 0) return;
  const float* rows = rows_ + static_cast<size_t>(first) * spec_.hidden_size;
  if (is_divided_) {
    project_sharded(rows, count, has_barriers);
  } else {
    ops_.linear(weights_.output_layer(), rows, count, logits_, false);
  }
  if (spec_.output.scale != 1 || spec_.output.softcap != 0) {
    ops_.scale_softcap(spec_.output.scale, spec_.output.softcap, count, logit_count(spec_), logits_);
  }
}

void OutputStage::project_sharded(const float* rows, int count, bool has_barriers) {
  const LinearWeight layer = weights_.output_layer();
  const auto width = static_cast<size_t>(vocab_part_);
  const auto vocab = static_cast<size_t>(logit_count(spec_));
  const size_t part = static_cast<size_t>(count) * width;
  auto* parts = logit_parts_.as<float>();
  if (layer.out_features > 0) ops_.linear(layer, rows, count, parts + static_cast<size_t>(rank_) * part, false);
  if (has_barriers) ops_.all_gather(parts, part);
  // Rows side by side again: those of whole parts, and those of the last one.
  const auto whole = static_cast<int>(vocab / width);
  const auto rest = static_cast<int>(vocab % width);
  if (whole > 0) {
    ops_.copy_heads({parts, count, width, whole, part, vocab_part_},
                    {logits_, count, vocab, whole, width, vocab_part_});
  }
  if (rest > 0) {
    const auto before = static_cast<size_t>(whole);
    ops_.copy_heads({parts + before * part, count, static_cast<size_t>(rest), 1, 0, rest},
                    {logits_ + before * width, count, vocab, 1, 0, rest});
  }
}

void OutputStage::end(const LogitRows& logit_rows, int projected, bool has_barriers) {
  output_ = {};
  if (ops_.shares_host_memory()) {
    output_.logits = logits_.size() > 0 ? logits_.as<float>() : nullptr;
    output_.hidden = target_states();
    return;
  }
  for (int first = 0; first < logit_rows.count() && !spec_.encoder; first += logit_rows_at_once_) {
    const int count = std::min(logit_rows_at_once_, logit_rows.count() - first);
    if (first >= projected) project(first, count, has_barriers);
    const int choices = std::clamp(logit_rows.choices - first, 0, count);
    if (choices > 0) sampler_->choose(first, choices, logits_);
    if (choices == count) continue;
    const auto vocab = static_cast<size_t>(logit_count(spec_));
    const auto requested = static_cast<size_t>(first + choices - logit_rows.choices);  // those brought before
    download(logits_ + static_cast<size_t>(choices) * vocab, count - choices, logit_count(spec_),
             host_logits_.as<float>() + requested * vocab);
  }
  if (sampler_) sampler_->end();
  const auto skipped = static_cast<size_t>(logit_rows.choices) * static_cast<size_t>(spec_.hidden_size);
  download(target_states() + skipped, logit_rows.requested, spec_.hidden_size, host_rows_.as<float>());
  output_.logits = host_logits_.size() > 0 ? host_logits_.as<float>() : nullptr;
  output_.hidden = host_rows_.as<float>();
}

void OutputStage::end_with_texts(const StepInput& input, const float* hidden) {
  const auto count = static_cast<int>(input.tokens.size());
  const auto width = static_cast<size_t>(spec_.hidden_size);
  ops_.norm(weights_.final_norm.view, hidden, count, spec_.hidden_size, rows_);
  const bool is_host = ops_.shares_host_memory();
  if (!is_host) download(rows_, count, spec_.hidden_size, host_rows_.as<float>());
  const float* from = is_host ? rows_ : host_rows_.as<float>();
  output_ = {};
  if (rank_ != 0) return;
  size_t vectors = 0;
  for (const StepSpan& span : input.spans) vectors += static_cast<size_t>(span.logit_rows());
  vectors_.resize(vectors * width);
  float* to = vectors_.data();
  for (const StepSpan& span : input.spans) {
    const float* rows = from + static_cast<size_t>(span.first_token) * width;
    const size_t logit_rows = static_cast<size_t>(span.logit_rows()) * width;
    if (span.requested == SpanLogits::kAll) {
      std::copy_n(rows, logit_rows, to);
    } else {
      pool_text(spec_.encoder->pooling, rows, span.count, spec_.hidden_size, to);
    }
    to += logit_rows;
  }
  output_.hidden = vectors_.data();
}

void OutputStage::end_without_tokens() {
  if (sampler_) {
    sampler_->begin({});
    sampler_->end();
  }
  output_ = {};
}

StepOutput OutputStage::collect() {
  if (sampler_) {
    output_.chosen = sampler_->collect();
    output_.device_seconds = sampler_->seconds_taken();
  }
  return output_;
}

void OutputStage::download(const float* from, int rows, int width, float* to) {
  if (rows == 0 || rank_ != 0) return;
  ops_.download(from, float_bytes(rows, width), to);
}

}  // namespace turbomind
