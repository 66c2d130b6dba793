// The program of a step of the decoder: a list of operations for the embeddings, for each layer and for the output. It
// is compiled once, when a model is loaded: what depends on the model alone is decided then, and operations hold their
// weights and their rows. What differs from step to step is in ModelStep.
//
// A layer is [cross-attention], mixers, MLP, [further inputs], each of which adds its operations in execution order
// (NativeRunner::compile_layer). A half of the layer reads `norm(stream)`, and adds to the stream where nothing is
// between (ranks, an output norm, a factor); otherwise it makes `branch`, which is added. Rows that halves share,
// float32 [rows, hidden_size]:
//
//   stream      the residual stream
//   normed      a norm of it: made where more than one operation reads it, else workspace of the one that does
//   mlp_input   the same for the MLP of a parallel block with two norms, made before attention adds to the stream;
//               in the last layer, the requested rows; with shared blocks, what a recurrence reads a norm of
//   branch      what a half makes, or both halves of a parallel block; embeddings of positions; further inputs
//   experts     what experts make alongside a dense MLP
//   embeddings  of the tokens, with shared blocks; joined: a norm of stream and embeddings, [rows, 2 hidden_size]
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/model_runner.h"
#include "model/step_context.h"

namespace turbomind {

// A step, with what its operations look at.
struct ModelStep : StepContext {
  const StepInput& input;
  int embedded = 0;              // rows that take the place of token embeddings
  bool has_cross_spans = false;  // whether rows look at images
  int logit_rows = 0;
  int projected = 0;        // of the wanted rows, those whose logits are computed
  bool drops_rows = false;  // whether the MLP of the last layer runs for wanted rows alone
};

// Rows [rows, hidden_size], by the name that a printed program has for them.
struct Rows {
  std::string name;
  float* data = nullptr;
};
// Those that an operation reads; a linear layer may make them as it reads, or they are made into `workspace`.
struct Source {
  std::string name;
  LinearInput rows;
  std::string workspace;
};
// Those that it writes, or adds to.
struct Target {
  Rows rows;
  bool accumulates = false;

  std::string is() const { return rows.name + (accumulates ? " += " : " = "); }
};

class Program {
 public:
  explicit Program(int hidden_size) : size_(hidden_size) {}

  // The operations that follow belong to that part; `layer`: its number, where it is one of the layers.
  void begin(const std::string& part, int layer = -1) { parts_.push_back({part, layer, {}}); }
  // `text`: the operation as a printed program has it.
  void add(std::string text, std::function<void(ModelStep&)> run) {
    parts_.back().operations.push_back({std::move(text), std::move(run)});
  }
  void norm(const NormWeight& weight, const Rows& x, const Rows& y);
  // y += factor x
  void add_scaled(float factor, const Rows& x, const Rows& y);
  void scale(float factor, const Rows& x);
  void sum_over_ranks(const Rows& x);
  // The rows of `source` as they are: made, where they are a norm's.
  Source made(const Source& source);

  // Until an operation leaves no rows.
  void run(ModelStep& step) const {
    for (const Part& part : parts_) {
      for (const Operation& operation : part.operations) {
        if (step.rows > 0) operation.run(step);
      }
    }
  }
  // A line for each operation; layers that are alike are printed once.
  std::string text() const;

 private:
  struct Operation {
    std::string text;
    std::function<void(ModelStep&)> run;
  };
  struct Part {
    std::string name;
    int layer;
    std::vector<Operation> operations;
  };

  int size_;
  std::vector<Part> parts_;
};

}  // namespace turbomind
