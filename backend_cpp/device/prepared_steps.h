// Steps that only decode, on a device that makes them ready before the first of their shape comes.
#pragma once

#include <functional>
#include <vector>

namespace turbomind {

// Of such steps, padded: rows, and the bound of the context of all of them.
struct DecodingShape {
  int rows = 0;
  int context = 0;
};

class PreparedSteps {
 public:
  virtual ~PreparedSteps() = default;

  // The shapes that steps of at most `most_rows` sequences, none longer than `most_context` tokens, take and that can
  // be prepared for: what comes most often comes first.
  virtual std::vector<DecodingShape> shapes(int most_rows, int most_context) const = 0;
  // In place of set_spans for tokens, of all tables that it was called with: those of a step of that shape, which has
  // no rows of its own.
  virtual void set_empty_spans(const DecodingShape& shape) = 0;
  // Runs `body`, the operators of such a step, for what happens on the way: kernels are loaded, memory is taken.
  virtual void warm_up(const std::function<void()>& body) = 0;
  // Makes ready what run_step does with the repeatable `body` of `rows` rows, for the spans that were set, and does
  // none of it. Returns whether there was room.
  virtual bool prepare(int rows, const std::function<void()>& body) = 0;
  // Forgets what was made ready for the spans that were set.
  virtual void forget(int rows) = 0;
};

}  // namespace turbomind
