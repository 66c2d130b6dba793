// Pictures that tokens look at by cross-attention, in a model where they do not stand among the tokens.
//
// Each has one token in the prompt. Pictures whose tokens follow each other are looked at together: the token of each
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

class PictureGroup {
 public:
  // `pictures` follow each other. A cache block holds `rows_of_block` of their rows and has `block_len` places.
  PictureGroup(std::span<const EmbeddingRange> pictures, int rows_of_block, int block_len);

  int begin() const { return pictures_.front().begin; }  // the first picture's token
  int rows() const { return ends_.back(); }              // that are looked at
  int block_count() const { return block_count_; }
  // How many of the rows the token, which lies behind begin(), sees.
  int rows_seen_by(int token) const;
  // One behind the last token from `token` on, before `end`, that sees as many rows as `token` does.
  int end_of_sight(int token, int end) const;
  // Row `row` as float32 [width].
  void read(int row, float* to) const;

  // What stands for the rows where the cache's blocks are found by their tokens: nothing but the pictures' digests.
  const std::vector<int32_t>& places() const { return places_; }
  std::span<const EmbeddingRange> keys() const { return keys_; }

 private:
  std::vector<EmbeddingRange> pictures_;
  std::vector<int> ends_;  // [pictures]; rows up to the end of each
  int block_count_;
  std::vector<int32_t> places_;  // zeros
  std::vector<EmbeddingRange> keys_;
};

// In the order of their tokens.
std::vector<PictureGroup> group_pictures(std::span<const EmbeddingRange> pictures, int rows_of_block, int block_len);

}  // namespace turbomind
