// Weight loader, from a checkpoint's tensors to the storage that kernels read.
#pragma once

#include <string>

#include "base/aligned_buffer.h"
#include "kernels/types.h"
#include "weights/checkpoint.h"
#include "weights/linear_storage.h"

namespace turbomind {

// How matrices are kept in memory.
struct WeightOptions {
  DType dtype = DType::kFloat32;
  int bits = 0;    // 8 or 4: rounded while loading, unless stored as codes; 0: as `dtype` says
  int group = 32;  // inputs that share a scale
  // The device multiplies with codes of 5 and 6 bits, and with codes whose groups have minima.
  bool takes_gguf_blocks = false;
  bool is_tiled = false;    // linear layers and heads of 32 and 16 bits are LinearWeight::is_tiled
  bool only_sizes = false;  // buffers are allocated, which takes no memory, and no values read
};

// Reads engine tensors by name, whole or the part that the sizes keep. Every method throws Error naming the tensor that
// is missing or of the wrong shape. Safe to use from any thread.
class WeightReader {
 public:
  WeightReader(const Checkpoint& checkpoint, const WeightOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  const WeightOptions& options() const { return options_; }
  AlignedBuffer vector(const std::string& name, const Slice& size) const;  // float32
  // A matrix that is never rounded: `name` is the whole name.
  LinearStorage matrix(const std::string& name, const Slice& out_features, const Slice& in_features, DType dtype,
                       const Loop& over_rows = in_order) const;
  // Makes tiles of a matrix of 32 or 16 bits if the options say so.
  void tile(LinearStorage& storage, const Loop& over_tiles = in_order) const;
  // A matrix that stays in the files.
  StoredTable stored(const std::string& name, int rows, int size) const { return checkpoint_.stored(name, rows, size); }
  // A matrix whose rows are looked up: integers if the checkpoint stores them so and the device takes them, else as
  // matrix() in the options' type.
  LinearStorage table(const std::string& name, int rows, int size, const Loop& loop) const;
  // `name`.weight as the options say, or as it is where the checkpoint stores codes; and `name`.bias, unless the first
  // input is not among the kept ones: products over parts of the inputs are added up, and so one of them has the bias.
  LinearStorage linear(const std::string& name, const Slice& out_features, const Slice& in_features,
                       bool has_bias) const;
  // For a part of `name`.weight's inputs: those to divide instead, as many, so that codes whose inputs are out of order
  // stay codes. They are neighbours in that order.
  Slice as_stored(const std::string& name, int out_features, const Slice& in_features) const;

 private:
  Loop loop_or_none(const Loop& loop) const { return options_.only_sizes ? skip_all : loop; }

  const Checkpoint& checkpoint_;
  WeightOptions options_;
};

// Rounds w [out_features, in_features] to `bits` bits.
LinearStorage round_matrix(const float* w, int out_features, int in_features, int bits, int group, const Loop& loop);

}  // namespace turbomind
