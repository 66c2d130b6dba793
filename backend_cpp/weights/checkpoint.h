// Checkpoint weights as named expressions over the tensors of safetensors files (manifest.json).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/file_descriptor.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "kernels/ngrams.h"
#include "kernels/types.h"
#include "weights/checkpoint_tensor.h"
#include "weights/gguf/file.h"
#include "weights/linear_storage.h"
#include "weights/manifest_value.h"
#include "weights/row_sources.h"
#include "weights/slice.h"

namespace turbomind {

// One safetensors file, mapped. Tensor bytes are checked against the file's size when the header is read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);  // throws Error for a missing, truncated or malformed file
  const CheckpointTensor& tensor(const std::string& name) const;
  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }
  const MappedFile& mapped() const { return file_; }

 private:
  MappedFile file_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

// A matrix that stays in the files.
struct StoredTable {
  int size = 0;  // of a row
  std::vector<StoredRows::Part> parts;
  std::vector<FileDescriptor> files;

  StoredRows view() const { return {size, parts.data(), static_cast<int>(parts.size())}; }
};

class Checkpoint {
 public:
  // `directory` holds manifest.json; relative file names start there.
  explicit Checkpoint(const std::string& directory);

  bool has(const std::string& name) const;
  // hf for numbers, or how linear layers are stored: awq, gptq, fp8, ... (docs/internals/interfaces.md).
  std::string weight_format() const;
  // Least number of neighbouring inputs that packed codes can be divided by: the least common multiple of their groups;
  // 1 where there are none.
  int input_group() const;
  // Evaluates what `shape` keeps of tensor `name` into `destination` (row-major, converted to T, rounded to nearest
  // even). Throws Error when the tensor's shape is not that.
  template <class T>
  void read(const std::string& name, const std::vector<Slice>& shape, T* destination,
            const Loop& loop = in_order) const;
  // Parts of tensor `name`, joined along dimension 0, in order. Only the first two dimensions can be cut,
  // the second of matrices. Throws Error when the tensor's shape is not `shape`.
  std::vector<ManifestValue> parts(const std::string& name, const std::vector<Slice>& shape) const;

  // Tensor `name` [rows, size], of which nothing is read here. Throws Error where it is not whole tensors of files.
  StoredTable stored(const std::string& name, int rows, int size) const;

  // Where the rows of tensor `name` come from; without runs where it is not made of whole rows.
  RowSources row_sources(const std::string& name) const;

 private:
  std::vector<ManifestValue> evaluate_rows(const Json& expression) const;
  std::vector<ManifestValue> evaluate(const Json& expression) const;
  // The tensor that the operation "load" names. One of a GGUF file has its type (weights/gguf/blocks.h), shape and
  // place in the expression.
  CheckpointTensor loaded(const Json& expression) const;
  // The least common multiple of the groups that the kernels give the codes in an expression.
  int group_in(const Json& expression) const;
  std::vector<ManifestValue> checked_parts(const std::string& name, const std::vector<Slice>& shape) const;

  Json manifest_;
  std::vector<std::variant<SafetensorsFile, GgufFile>> files_;
};

}  // namespace turbomind
