#include "weights/gguf/file.h"

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "weights/gguf/blocks.h"

namespace turbomind {

bool GgufFile::is_one(const std::string& path) {
  char magic[4] = {};
  return static_cast<bool>(std::ifstream(path, std::ios::binary).read(magic, sizeof(magic))) &&
         std::memcmp(magic, "GGUF", sizeof(magic)) == 0;
}

CheckpointTensor GgufFile::tensor(const Json& load) const {
  const std::string& name = load.at("name").as_string();
  CheckpointTensor tensor{load.at("type").as_string(), {}, nullptr, 0, nullptr};
  for (const Json& size : load.at("shape").as_array()) tensor.shape.push_back(size.as_int());
  const auto elements = static_cast<size_t>(element_count(tensor.shape));
  const GgufBlocks* blocks = gguf_blocks(tensor.dtype);
  const size_t in_block = blocks != nullptr ? static_cast<size_t>(blocks->inputs) : 1;
  const size_t block_bytes = blocks != nullptr ? static_cast<size_t>(blocks->bytes) : type_bytes(tensor.dtype);
  if (block_bytes == 0)
    throw invalid_argument("tensor " + name + " has the type " + tensor.dtype + ", which is not read");
  if (elements % in_block != 0) throw invalid_argument("tensor " + name + " is not made of whole blocks");
  const int64_t offset = load.at("offset").as_int();
  const size_t size = file_.size();
  if (offset < 0 || static_cast<size_t>(offset) > size ||
      elements / in_block > (size - static_cast<size_t>(offset)) / block_bytes) {
    throw invalid_argument(file_.path() + ": tensor " + name + " is beyond the end: the file is truncated");
  }
  tensor.data = file_.data() + offset;
  tensor.bytes = elements / in_block * block_bytes;
  return tensor;
}

}  // namespace turbomind
