// What a step costs by its tokens, learned from steps that were run: a straight line, which holds well enough for the
// few tokens of steps in which drafts can pay. It counts tokens as the kernels compute them, 1, 2, 4 or 8 at a time.
#pragma once

namespace turbomind {

class StepCost {
 public:
  static constexpr int kTogether = 8;    // tokens that are computed at a time, at most
  static constexpr int kMaxTokens = 64;  // steps with more are not looked at

  void note(int tokens, double seconds);
  bool is_known() const { return weight_ > 0; }
  // Of a step, in seconds or, before any was seen, in another unit.
  double of(int tokens) const { return seconds_of(computed_tokens(tokens)); }

 private:
  static int computed_tokens(int tokens);
  double token() const;
  double seconds_of(double tokens) const;

  // Weighted means of computed tokens, of seconds, of their product and of the square of tokens.
  double weight_ = 0, tokens_ = 0, seconds_ = 0, product_ = 0, square_ = 0;
};

}  // namespace turbomind
