#include "weights/checkpoint_tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "base/error.h"

namespace turbomind {

namespace {

size_t element_bytes(const CheckpointTensor& tensor) {
  const int64_t count = element_count(tensor.shape);
  return count == 0 ? 0 : tensor.bytes / static_cast<size_t>(count);
}

CheckpointTensor with_new_bytes(const CheckpointTensor& source, std::vector<int64_t> shape,
                                std::shared_ptr<std::vector<std::byte>> bytes) {
  return {source.dtype, std::move(shape), bytes->data(), bytes->size(), bytes};
}

// Copies `count` runs of `run` bytes, `stride` bytes apart, to neighbouring places.
void copy_runs(const std::byte* from, size_t stride, size_t count, size_t run, std::byte* to) {
  const auto copy = [&](auto size) {
    for (size_t i = 0; i < count; ++i) std::memcpy(to + i * size, from + i * stride, size);
  };
  switch (run) {  // single elements, whose copies need no call
    case 2:
      copy(std::integral_constant<size_t, 2>());
      break;
    case 4:
      copy(std::integral_constant<size_t, 4>());
      break;
    default:
      copy(run);
  }
}

}  // namespace

int64_t element_count(const std::vector<int64_t>& shape) {
  constexpr int64_t kLargest = int64_t{1} << 62;
  // A size of 0 makes nothing of the others, which may still not be beyond all bounds.
  int64_t count = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0) throw invalid_argument("a dimension has the size " + std::to_string(size));
    is_empty = is_empty || size == 0;
    if (size > kLargest / count) throw invalid_argument("a tensor has more than 2^62 elements");
    count *= std::max<int64_t>(size, 1);
  }
  return is_empty ? 0 : count;
}

size_t type_bytes(const std::string& dtype) {
  if (dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "U8" || dtype == "I8" || dtype == "F8_E4M3" || dtype == "F8_E8M0") return 1;
  return dtype == "BF16" || dtype == "F16" ? 2 : 0;
}

namespace {

// Whole numbers, of tables.
float to_float(int64_t value) {
  return static_cast<float>(value);
}
float to_float(int32_t value) {
  return static_cast<float>(value);
}
using turbomind::to_float;

template <class From, class T>
void convert_values(const CheckpointTensor& source, size_t count, T* destination) {
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source.data + sizeof(From) * i, sizeof(value));
    destination[i] = from_float<T>(to_float(value));
  }
}

}  // namespace

template <class T>
void copy_values(const CheckpointTensor& source, T* destination) {
  const size_t bytes = type_bytes(source.dtype);
  if (bytes < 2 || source.dtype == "U32") {
    throw invalid_argument("weights of type " + source.dtype + " are not supported (F32, BF16 and F16 are)");
  }
  const size_t count = source.bytes / bytes;
  if (source.dtype == "I64") {
    convert_values<int64_t>(source, count, destination);
  } else if (source.dtype == "I32") {
    convert_values<int32_t>(source, count, destination);
  } else if (source.dtype == "F32") {
    convert_values<float>(source, count, destination);
  } else if (source.dtype == "BF16") {
    if constexpr (std::is_same_v<T, bf16>) {
      std::memcpy(destination, source.data, source.bytes);
    } else {
      convert_values<bf16>(source, count, destination);
    }
  } else if constexpr (std::is_same_v<T, half>) {
    std::memcpy(destination, source.data, source.bytes);
  } else {
    convert_values<half>(source, count, destination);
  }
}

template void copy_values<float>(const CheckpointTensor&, float*);
template void copy_values<bf16>(const CheckpointTensor&, bf16*);
template void copy_values<half>(const CheckpointTensor&, half*);

CheckpointTensor sliced(const CheckpointTensor& source, size_t dim, int64_t begin, int64_t end) {
  if (dim >= source.shape.size() || begin < 0 || end < begin || end > source.shape[dim]) {
    throw invalid_argument("slice " + std::to_string(begin) + ".." + std::to_string(end) + " of dimension " +
                           std::to_string(dim) + " is outside the tensor");
  }
  std::vector<int64_t> shape = source.shape;
  shape[dim] = end - begin;
  const auto middle = source.shape.begin() + static_cast<std::ptrdiff_t>(dim);
  const auto outer = static_cast<size_t>(element_count({source.shape.begin(), middle}));
  const size_t inner = static_cast<size_t>(element_count({middle + 1, source.shape.end()})) * element_bytes(source);
  const size_t kept = inner * static_cast<size_t>(end - begin);
  const std::byte* first = source.data + inner * static_cast<size_t>(begin);
  if (outer == 1) return {source.dtype, std::move(shape), first, kept, source.owner};
  auto bytes = std::make_shared<std::vector<std::byte>>(outer * kept);
  for (size_t i = 0; kept > 0 && i < outer; ++i) {
    std::memcpy(bytes->data() + i * kept, first + i * inner * static_cast<size_t>(source.shape[dim]), kept);
  }
  return with_new_bytes(source, std::move(shape), std::move(bytes));
}

CheckpointTensor columns(const CheckpointTensor& source, const Slice& kept) {
  if (source.shape.size() != 2 || source.shape[1] != kept.whole()) throw invalid_argument("columns need a matrix");
  const size_t element = element_bytes(source);
  const auto rows = static_cast<size_t>(source.shape[0]);
  const auto width = static_cast<size_t>(kept.size()) * element;
  auto bytes = std::make_shared<std::vector<std::byte>>(rows * width);
  for (size_t row = 0; width > 0 && row < rows; ++row) {
    const std::byte* from = source.data + row * static_cast<size_t>(kept.whole()) * element;
    std::byte* to = bytes->data() + row * width;
    for (const Slice::Range& range : kept.ranges()) {
      const auto run = static_cast<size_t>(range.end - range.begin) * element;
      std::memcpy(to, from + static_cast<size_t>(range.begin) * element, run);
      to += run;
    }
  }
  return with_new_bytes(source, {source.shape[0], kept.size()}, std::move(bytes));
}

CheckpointTensor permuted(const CheckpointTensor& source, const std::vector<size_t>& dims) {
  const size_t rank = source.shape.size();
  std::vector<size_t> sorted = dims;
  std::sort(sorted.begin(), sorted.end());
  std::vector<size_t> all(rank);
  std::iota(all.begin(), all.end(), size_t{0});
  if (sorted != all) throw invalid_argument("permute must name every dimension once");
  std::vector<size_t> source_strides(rank, element_bytes(source));
  for (size_t i = rank; i-- > 1;) source_strides[i - 1] = source_strides[i] * static_cast<size_t>(source.shape[i]);
  std::vector<int64_t> shape(rank);
  std::vector<size_t> strides(rank);
  for (size_t i = 0; i < rank; ++i) {
    shape[i] = source.shape[dims[i]];
    strides[i] = source_strides[dims[i]];
  }
  // The last dimensions that stay where they are move as one run of bytes.
  size_t moving = rank;
  size_t run = element_bytes(source);
  while (moving > 0 && dims[moving - 1] == moving - 1) run *= static_cast<size_t>(shape[--moving]);
  if (moving == 0) return source;
  auto bytes = std::make_shared<std::vector<std::byte>>(source.bytes);
  const auto inner = static_cast<size_t>(shape[moving - 1]);
  std::vector<int64_t> index(moving, 0);
  size_t offset = 0;
  for (size_t to = 0; to < source.bytes; to += inner * run) {
    copy_runs(source.data + offset, strides[moving - 1], inner, run, bytes->data() + to);
    for (size_t i = moving - 1; i-- > 0;) {
      offset += strides[i];
      if (++index[i] < shape[i]) break;
      offset -= strides[i] * static_cast<size_t>(shape[i]);
      index[i] = 0;
    }
  }
  return with_new_bytes(source, std::move(shape), std::move(bytes));
}

CheckpointTensor reshaped(const CheckpointTensor& source, const std::vector<int64_t>& shape) {
  if (element_count(shape) != element_count(source.shape)) {
    throw invalid_argument("reshape must keep the number of elements, " + std::to_string(element_count(source.shape)));
  }
  CheckpointTensor result = source;
  result.shape = shape;
  return result;
}

CheckpointTensor joined(const std::vector<CheckpointTensor>& parts) {
  if (parts.empty()) throw invalid_argument("concat needs an argument");
  if (parts.size() == 1) return parts.front();
  std::vector<int64_t> shape = parts.front().shape;
  if (shape.empty()) throw invalid_argument("a single number cannot be joined with others");
  auto bytes = std::make_shared<std::vector<std::byte>>();
  shape[0] = 0;
  for (const CheckpointTensor& part : parts) {
    std::vector<int64_t> like = part.shape;
    if (like.size() == shape.size()) like[0] = shape[0];
    if (like != shape || part.dtype != parts.front().dtype) {
      throw invalid_argument("parts of a rearranged concat differ in type or shape");
    }
    shape[0] += part.shape[0];
    bytes->insert(bytes->end(), part.data, part.data + part.bytes);
  }
  return with_new_bytes(parts.front(), std::move(shape), std::move(bytes));
}

}  // namespace turbomind
