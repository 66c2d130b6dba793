// A GGUF file, mapped. Where its tensors are is known from the manifest: its header is read by Python
// (lmdeploy/turbomind/gguf/header.py).
#pragma once

#include <string>

#include "base/json.h"
#include "base/mapped_file.h"
#include "weights/checkpoint_tensor.h"

namespace turbomind {

class GgufFile {
 public:
  explicit GgufFile(const std::string& path) : file_(path) {}

  const MappedFile& mapped() const { return file_; }
  // Whether a file begins as GGUF does; false for one that cannot be read.
  static bool is_one(const std::string& path);
  // Tensor of an operation "load": its `type`, `shape` (row-major, [out, in]) and `offset` in bytes from the file's
  // beginning. Throws Error for a type that is not read and for what is beyond the end.
  CheckpointTensor tensor(const Json& load) const;

 private:
  MappedFile file_;
};

}  // namespace turbomind
