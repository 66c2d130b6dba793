#include "engine/generation/thinking_budget.h"

#include <algorithm>
#include <limits>

namespace turbomind {

ThinkingBudget::ThinkingBudget(const GenerationParams& params)
    : params_(params),
      is_open_(!params.thinking_end_ids.empty() && (params.thinking_budget || params.repetition_detection != "off")),
      has_begun_(params.thinking_begin.empty()),
      budget_(params.thinking_budget.value_or(std::numeric_limits<int>::max())) {}

int32_t ThinkingBudget::forced() const {
  if (!is_open_ || !has_begun_ || tokens_ < budget_) return -1;
  return params_.thinking_end_ids[forced_];
}

void ThinkingBudget::advance(int32_t token, std::string_view bytes) {
  if (!is_open_) return;
  if (forced() == token) {
    is_open_ = ++forced_ < params_.thinking_end_ids.size();
    return;
  }
  ++tokens_;
  text_ += bytes;
  if (!has_begun_) find_begin();
  if (!has_begun_) return;
  const std::string& end = params_.thinking_end;
  is_open_ = is_open_ && text_.find(end) == std::string::npos;
  if (text_.size() >= end.size()) text_.erase(0, text_.size() - end.size() + 1);
}

// A response that begins otherwise has no reasoning.
void ThinkingBudget::find_begin() {
  const std::string& begin = params_.thinking_begin;
  text_.erase(0, std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
  const size_t common = std::min(text_.size(), begin.size());
  is_open_ = text_.compare(0, common, begin, 0, common) == 0;
  has_begun_ = is_open_ && common == begin.size();
  if (has_begun_) text_.erase(0, begin.size());
}

}  // namespace turbomind
