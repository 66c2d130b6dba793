// Ends the reasoning of a response when its budget of tokens is spent, by forcing the tokens of the end mark.
//
// Reasoning begins with the response, or with a mark at the response's beginning, and ends with another mark, if the
// budget does not end it first. Marks are found in the text under any tokenization.
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
  // `params` must outlive it. Without a budget it never forces anything.
  explicit ThinkingBudget(const GenerationParams& params);

  // Whether it may force a token, now or later.
  bool is_open() const { return is_open_; }
  // The token that is forced next; -1: none.
  int32_t forced() const;
  // Takes the response's next token.
  void advance(std::string_view bytes);

 private:
  void look_for_begin();

  const GenerationParams& params_;
  bool is_open_;
  bool has_begun_;
  int tokens_ = 0;     // of the response
  size_t forced_ = 0;  // tokens forced since the budget was spent
  std::string text_;   // in which a mark may still be completed
};

}  // namespace turbomind
