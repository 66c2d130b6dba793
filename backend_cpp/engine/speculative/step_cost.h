// What a step costs by its tokens, learned from steps that were run: a straight line, which holds well enough for the
// few tokens of steps in which drafts can pay. It counts tokens as the kernels compute them, 1, 2, 4 or 8 at a time.
#pragma once

namespace turbomind {

class StepCost {
 public:
  static constexpr int kTogether = 8;  // tokens that are computed at a time, at most
  static constexpr int kMaxRows = 64;  // steps with more are not looked at

  void note(int rows, double seconds);
  bool is_known() const { return weight_ > 0; }
  // Of a step, in seconds or, before any was seen, in another unit.
  double of(int rows) const { return seconds_of(computed_rows(rows)); }

 private:
  static int computed_rows(int rows);
  double row() const;
  double seconds_of(double rows) const;

  // Weighted means of computed rows, of seconds, of their product and of the square of rows.
  double weight_ = 0, rows_ = 0, seconds_ = 0, product_ = 0, square_ = 0;
};

}  // namespace turbomind
