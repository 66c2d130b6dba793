// A model's weights as named expressions over the tensors of its own safetensors files (manifest.json).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "kernels/types.h"
#include "model/stored_tensor.h"

namespace turbomind {

// One safetensors file, mapped. Tensor bytes are checked against the file's size when the header is read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);  // throws Error for a missing, truncated or malformed file
  const StoredTensor& tensor(const std::string& name) const;

 private:
  MappedFile file_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

class Checkpoint {
 public:
  // `directory` holds manifest.json; relative file names start there.
  explicit Checkpoint(const std::string& directory);

  bool has(const std::string& name) const;
  // Evaluates tensor `name` into `destination` (row-major, converted to T, rounded to nearest even).
  // Throws Error when its shape is not `shape`.
  template <class T>
  void read(const std::string& name, const std::vector<int64_t>& shape, T* destination) const;

 private:
  // The tensors an expression joins along dimension 0, in order.
  std::vector<StoredTensor> parts(const Json& expression) const;

  Json manifest_;
  std::vector<SafetensorsFile> files_;
};

}  // namespace turbomind
