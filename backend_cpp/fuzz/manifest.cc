// The expressions of a manifest over a small file of tensors: refused, or numbers that fill their shape. Input: the
// expression of tensor "x" of a manifest, as JSON.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "fuzz/fuzz.h"
#include "weights/checkpoint.h"

namespace turbomind {

namespace {

// Of every kind that an expression can be about, with values that count up.
constexpr char kHeader[] = R"({
  "matrix": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]},
  "halves": {"dtype": "F16", "shape": [4, 8], "data_offsets": [128, 192]},
  "cube": {"dtype": "BF16", "shape": [2, 4, 8], "data_offsets": [192, 320]},
  "bytes": {"dtype": "U8", "shape": [2, 2, 16], "data_offsets": [320, 384]},
  "scales": {"dtype": "U8", "shape": [2, 2], "data_offsets": [384, 388]},
  "awq": {"dtype": "I32", "shape": [8, 1], "data_offsets": [388, 420]},
  "zeros": {"dtype": "I32", "shape": [1, 1], "data_offsets": [420, 424]},
  "group_scales": {"dtype": "F16", "shape": [1, 8], "data_offsets": [424, 440]},
  "codes": {"dtype": "I8", "shape": [8, 8], "data_offsets": [440, 504]},
  "code_scales": {"dtype": "F32", "shape": [8, 1], "data_offsets": [504, 536]},
  "one": {"dtype": "F32", "shape": [], "data_offsets": [536, 540]},
  "none": {"dtype": "F32", "shape": [0, 4], "data_offsets": [540, 540]},
  "odd": {"dtype": "F64", "shape": [2], "data_offsets": [540, 545]}
})";
constexpr size_t kPayload = 545;

// A directory with the file of tensors, gone at the end.
class Directory {
 public:
  Directory() {
    path_ = (std::filesystem::temp_directory_path() / "manifest-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw internal_error("no room for " + path_);
    const uint64_t length = std::strlen(kHeader);
    std::string content(sizeof(length), '\0');
    std::memcpy(content.data(), &length, sizeof(length));
    content += kHeader;
    for (size_t i = 0; i < kPayload; ++i) content += static_cast<char>(i % 60);
    std::ofstream(path_ + "/t.safetensors", std::ios::binary) << content;
  }
  ~Directory() { std::filesystem::remove_all(path_); }

  void write_manifest(std::string_view expression) const {
    std::ofstream(path_ + "/manifest.json", std::ios::binary)
        << R"({"files": ["t.safetensors"], "weight_format": "hf", "tensors": {"x": )" << expression << "}}";
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

FUZZ_TARGET(manifest) {
  static const Directory directory;
  directory.write_manifest(input);
  const std::vector<std::vector<int64_t>> shapes = {{8, 4},  {4, 8}, {16, 4}, {8, 8}, {2, 4, 8},
                                                    {4, 64}, {8},    {32},    {0, 4}};
  for (const std::vector<int64_t>& shape : shapes) {
    fuzz::is_accepted([&] {
      const Checkpoint checkpoint(directory.path());
      PROMISE(checkpoint.input_group() >= 1);
      std::vector<Slice> whole;
      for (const int64_t size : shape) whole.emplace_back(static_cast<int>(size));
      std::vector<float> values(static_cast<size_t>(element_count(shape)));
      checkpoint.read("x", whole, values.data());
    });
  }
}

}  // namespace turbomind
