#include "model/rope_tables.h"

#include <cmath>
#include <utility>

#include "model/step_context.h"

namespace turbomind {

RopeTables::RopeTables(std::vector<RopeSpec> ropes, int max_rows) : ropes_(std::move(ropes)) {
  for (const RopeSpec& rope : ropes_) {
    const int pairs = static_cast<int>(rope.inv_freq.size());
    buffers_.push_back({float_buffer(max_rows, pairs), float_buffer(max_rows, pairs)});
  }
}

void RopeTables::fill(const StepInput& input) {
  for (size_t index = 0; index < ropes_.size(); ++index) {
    const RopeSpec& rope = ropes_[index];
    const size_t pairs = rope.inv_freq.size();
    for (const StepSpan& span : input.spans) {
      for (int r = 0; r < span.count; ++r) {
        const auto position = static_cast<float>(span.first_position + r);
        float* cosine = buffers_[index].cosine.as<float>() + static_cast<size_t>(span.first_row + r) * pairs;
        float* sine = buffers_[index].sine.as<float>() + static_cast<size_t>(span.first_row + r) * pairs;
        for (size_t i = 0; i < pairs; ++i) {
          const float angle = position * rope.inv_freq[i];
          cosine[i] = std::cos(angle) * rope.attention_scaling;
          sine[i] = std::sin(angle) * rope.attention_scaling;
        }
      }
    }
  }
}

RopeTable RopeTables::table(int rope) const {
  if (rope < 0) return {};
  const auto index = static_cast<size_t>(rope);
  return {buffers_[index].cosine.as<float>(), buffers_[index].sine.as<float>(),
          static_cast<int>(ropes_[index].inv_freq.size()), ropes_[index].is_interleaved};
}

}  // namespace turbomind
