// Groups of images for cross-attention, in models whose images are not among the tokens.
//
// Each has one token in the prompt. Images whose tokens follow each other are looked at together: the token of each
// sees it and those of the group before it, tokens of text see the whole group, up to the next one.
//
//   tokens   begin  |image|  |image|  What  differs?  |image|  And  here?
//   sees     -      a        a b      a b   a b       c        c    c
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/embedding_range.h"

namespace turbomind {

class ImageGroup {
 public:
  // `images` follow each other. A cache block holds `rows_of_block` of their rows and has `block_len` places.
  ImageGroup(std::span<const EmbeddingRange> images, int rows_of_block, int block_len);

  int begin() const { return images_.front().begin; }  // the first image's token
  int rows() const { return ends_.back(); }            // that are looked at
  int block_count() const { return block_count_; }
  // How many of the rows the token, which is after begin(), sees.
  int tokens_seen_by(int token) const;
  // One past the last token from `token` on, before `end`, that sees as many rows as `token` does.
  int end_of_visible(int token, int end) const;
  // Row `row` as float32 [width].
  void read(int row, float* to) const;

  // Key of the rows where the cache's blocks are found by their tokens: nothing but the images' digests.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::span<const EmbeddingRange> keys() const { return keys_; }

 private:
  std::vector<EmbeddingRange> images_;
  std::vector<int> ends_;  // [images]; rows up to the end of each
  int block_count_;
  std::vector<int32_t> tokens_;  // zeros
  std::vector<EmbeddingRange> keys_;
};

// In the order of their tokens.
std::vector<ImageGroup> group_images(std::span<const EmbeddingRange> images, int rows_of_block, int block_len);

}  // namespace turbomind
