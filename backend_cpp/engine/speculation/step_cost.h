// What a step costs by its rows, learned from steps that were run: a straight line, which holds well enough for the few
// rows of steps in which drafts can pay.
#pragma once

namespace turbomind {

class StepCost {
 public:
  static constexpr int kMostRows = 64;  // steps with more are not looked at

  void note(int rows, double seconds);
  // Of a step, in seconds or, before any was seen, in another unit.
  double of(int rows) const { return base() + row() * rows; }
  // Of one more row.
  double row() const;

 private:
  double base() const;

  // Weighted means of rows, of seconds, of their product and of the square of rows.
  double weight_ = 0, rows_ = 0, seconds_ = 0, product_ = 0, square_ = 0;
};

}  // namespace turbomind
