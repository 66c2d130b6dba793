// Reasoning budget: forces the end tokens when the budget is spent or the reasoning only repeats itself.
//
// Reasoning begins with the response, or with a mark at the response's beginning, and ends with another mark, if it is
// not ended first. Marks are found in the text under any tokenization.
//
// Used by the step thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace turbomind {

class ThinkingBudget {
 public:
  // `params` must outlive it. Without a mark that ends reasoning it never forces anything.
  explicit ThinkingBudget(const GenerationParams& params);

  // Whether the next token's number decides on what it forces, or it forces one.
  bool is_bound() const { return is_open_ && (params_.thinking_budget || budget_ == 0); }
  // Whether the response is within reasoning that may be ended.
  bool is_reasoning() const { return is_open_ && has_begun_ && tokens_ < budget_; }
  // The token that is forced next; -1: none.
  int32_t forced() const;
  // Takes the response's next token, which is another than the forced one only if it was chosen before end().
  void advance(int32_t token, std::string_view bytes);
  // Ends the reasoning from the next token on.
  void end() { budget_ = 0; }

 private:
  void find_begin();

  const GenerationParams& params_;
  bool is_open_;
  bool has_begun_;
  int budget_;
  int tokens_ = 0;     // of the response
  size_t forced_ = 0;  // tokens forced since the budget was spent
  std::string text_;   // in which a mark may still be completed
};

}  // namespace turbomind
