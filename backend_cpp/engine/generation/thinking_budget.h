// Ends the reasoning of a response that has thought long enough: from then on the tokens that end them have to come.
//
// Reasoning begin with the response, or with a mark that the response begins with, and end with another mark, if the
// budget does not end them first. Marks are found in the text, however it is cut into tokens.
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
  // The token that has to come next; -1: any may.
  int32_t forced() const;
  // Takes the response's next token.
  void advance(std::string_view bytes);

 private:
  void look_for_begin();

  const GenerationParams& params_;
  bool is_open_;
  bool has_begun_;
  int tokens_ = 0;     // of the response
  size_t forced_ = 0;  // that came since the budget was spent
  std::string text_;   // that may hold a mark yet
};

}  // namespace turbomind
