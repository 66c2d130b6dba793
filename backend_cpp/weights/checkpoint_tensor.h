// Tensors rearranged as manifest.json asks, in the type they are stored in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/types.h"
#include "weights/slice.h"

namespace turbomind {

// Row-major and without gaps. A rearrangement that needs no copy shares the bytes it came from.
struct CheckpointTensor {
  std::string dtype;  // as in a safetensors header
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const std::vector<std::byte>> owner;  // of data; null: the mapped file
};

// The number of elements. Throws Error for negative sizes and for more than 2^62.
int64_t element_count(const std::vector<int64_t>& shape);
// Bytes of one element; 0 for types the engine does not read.
size_t type_bytes(const std::string& dtype);
// Copies the values, converted to T and rounded to nearest even. Throws Error for other types than F32, BF16 and F16.
template <class T>
void copy_values(const CheckpointTensor& source, T* destination);

// [begin, end) of dimension `dim`.
CheckpointTensor sliced(const CheckpointTensor& source, size_t dim, int64_t begin, int64_t end);
// Some columns of a matrix.
CheckpointTensor columns(const CheckpointTensor& source, const Slice& kept);
// Dimension i of the result is dimension dims[i] of the source.
CheckpointTensor permuted(const CheckpointTensor& source, const std::vector<size_t>& dims);
CheckpointTensor reshaped(const CheckpointTensor& source, const std::vector<int64_t>& shape);
// Joined along dimension 0.
CheckpointTensor joined(const std::vector<CheckpointTensor>& parts);

// Each throws Error for what does not fit the shape.
}  // namespace turbomind
