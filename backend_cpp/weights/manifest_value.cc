#include "weights/manifest_value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "base/error.h"

namespace turbomind {

namespace {

template <class T>
std::vector<T> integers(const Json& list) {
  std::vector<T> values;
  for (const Json& value : list.as_array()) values.push_back(static_cast<T>(value.as_int()));
  return values;
}

CheckpointTensor owned(std::string dtype, std::vector<int64_t> shape, const void* values, size_t bytes) {
  auto copy = std::make_shared<std::vector<std::byte>>(bytes);
  std::memcpy(copy->data(), values, bytes);
  return {std::move(dtype), std::move(shape), copy->data(), bytes, copy};
}

// log(-x) of each number.
CheckpointTensor log_negative(const CheckpointTensor& source) {
  if (source.dtype != "F32") throw invalid_argument("log_negative needs F32, got " + source.dtype);
  std::vector<float> values(source.bytes / sizeof(float));
  std::memcpy(values.data(), source.data, source.bytes);
  for (float& value : values) value = std::log(-value);
  return owned(source.dtype, source.shape, values.data(), source.bytes);
}

// The inputs of a matrix in another order, in blocks of one size.
Slice reordered(const Json& operation, int64_t whole) {
  const int64_t size = operation.at("size").as_int();
  std::vector<int32_t> elements;
  for (const int64_t block : integers<int64_t>(operation.at("order"))) {
    if (size < 1 || block < 0 || (block + 1) * size > whole) {
      throw invalid_argument("a matrix of " + std::to_string(whole) + " inputs has no block " + std::to_string(block) +
                             " of " + std::to_string(size));
    }
    for (int64_t i = 0; i < size; ++i) elements.push_back(static_cast<int32_t>(block * size + i));
  }
  return Slice::of(static_cast<int>(whole), elements);
}

bool keeps_last(const Json& permute, size_t last) {
  const Json& dims = permute.at("dims");
  return dims.as_array().size() == last + 1 && dims.at(last).as_int() == static_cast<int64_t>(last);
}

CheckpointTensor applied(const Json& operation, const CheckpointTensor& source, const std::vector<int64_t>& shape) {
  const std::string& op = operation.at("op").as_string();
  if (op == "slice") {
    const auto dim = static_cast<size_t>(operation.at("dim").as_int());
    return sliced(source, dim, operation.at("begin").as_int(), operation.at("end").as_int());
  }
  if (op == "permute") return permuted(source, integers<size_t>(operation.at("dims")));
  if (op == "reshape") return reshaped(source, shape);
  if (op == "log_negative") return log_negative(source);
  throw invalid_argument("unknown operation " + op + "; convert the model again");
}

}  // namespace

ManifestValue::ManifestValue(std::shared_ptr<const QuantizedMatrix> quantized) : quantized_(std::move(quantized)) {
  std::vector<int32_t> rows(static_cast<size_t>(quantized_->out_features()));
  std::iota(rows.begin(), rows.end(), 0);
  tensor_ = owned("I32", {quantized_->out_features(), 1}, rows.data(), rows.size() * sizeof(int32_t));
}

std::vector<int64_t> ManifestValue::shape() const {
  std::vector<int64_t> shape = tensor_.shape;
  if (quantized_) shape.back() = quantized_->in_features();
  return shape;
}

int ManifestValue::output(int row) const {
  int32_t output;
  std::memcpy(&output, tensor_.data + sizeof(output) * static_cast<size_t>(row), sizeof(output));
  return output;
}

ManifestValue ManifestValue::rows(Slice::Range range) const {
  ManifestValue result = *this;
  result.tensor_ = sliced(tensor_, 0, range.begin, range.end);
  return result;
}

ManifestValue ManifestValue::inputs(const Slice& kept) const {
  std::shared_ptr<const QuantizedMatrix> part = quantized_ ? quantized_->inputs(kept) : nullptr;
  if (!part) return ManifestValue(columns(numbers(), kept));
  ManifestValue result = *this;
  result.quantized_ = std::move(part);
  return result;
}

CheckpointTensor ManifestValue::numbers() const {
  if (!quantized_) return tensor_;
  const auto width = static_cast<size_t>(quantized_->in_features());
  const size_t rows = tensor_.bytes / sizeof(int32_t);
  auto bytes = std::make_shared<std::vector<std::byte>>(rows * width * sizeof(float));
  for (size_t row = 0; row < rows; ++row) {
    quantized_->dequantize(output(static_cast<int>(row)), reinterpret_cast<float*>(bytes->data()) + row * width);
  }
  return {"F32", shape(), bytes->data(), bytes->size(), bytes};
}

ManifestValue rearranged(const Json& operation, const std::vector<ManifestValue>& parts) {
  const std::string& op = operation.at("op").as_string();
  std::vector<int64_t> shape;
  if (op == "reshape") shape = integers<int64_t>(operation.at("shape"));
  if (op == "inputs") {
    if (parts.size() != 1 || parts[0].shape().size() != 2) throw invalid_argument("inputs needs a matrix");
    return parts[0].inputs(reordered(operation, parts[0].shape()[1]));
  }
  if (parts.size() == 1 && parts[0].quantized_) {
    const ManifestValue& part = parts[0];
    const size_t last = part.tensor_.shape.size() - 1;
    const bool keeps_rows = (op == "slice" && operation.at("dim").as_int() < static_cast<int64_t>(last)) ||
                            (op == "permute" && keeps_last(operation, last)) ||
                            (op == "reshape" && !shape.empty() && shape.back() == part.quantized_->in_features());
    if (keeps_rows) {
      if (op == "reshape") shape.back() = 1;
      ManifestValue result = part;
      result.tensor_ = applied(operation, part.tensor_, shape);
      return result;
    }
  }
  std::vector<CheckpointTensor> numbers;
  for (const ManifestValue& part : parts) numbers.push_back(part.numbers());
  return ManifestValue(applied(operation, joined(numbers), shape));
}

bool can_pack(const std::vector<ManifestValue>& parts, bool takes_gguf_blocks) {
  const QuantizedMatrix* front = parts[0].quantized();
  return front != nullptr && std::all_of(parts.begin(), parts.end(), [&](const ManifestValue& part) {
           return part.quantized() != nullptr && front->packs_with(*part.quantized()) &&
                  (takes_gguf_blocks || !part.quantized()->has_mins());
         });
}

LinearStorage pack_quantized(const std::vector<ManifestValue>& parts, bool takes_gguf_blocks, const Loop& loop) {
  std::vector<QuantizedRow> rows;
  for (const ManifestValue& part : parts) {
    for (int row = 0; row < static_cast<int>(part.shape()[0]); ++row)
      rows.push_back({part.quantized(), part.output(row)});
  }
  return parts.at(0).quantized()->pack(rows, takes_gguf_blocks, loop);
}

}  // namespace turbomind
