#include "model/picture_group.h"

#include <algorithm>
#include <cstddef>

namespace turbomind {

namespace {

int blocks_of(int count, int block_len) {
  return (count + block_len - 1) / block_len;
}

}  // namespace

PictureGroup::PictureGroup(std::span<const EmbeddingRange> pictures, int rows_of_block, int block_len)
    : pictures_(pictures.begin(), pictures.end()) {
  for (const EmbeddingRange& picture : pictures_) {
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + picture.looked_at_rows());
  }
  const int count = static_cast<int>(pictures_.size());
  block_count_ = std::max(blocks_of(rows(), rows_of_block), blocks_of(count, block_len));
  places_.resize(static_cast<size_t>(block_count_) * static_cast<size_t>(block_len));
  for (int i = 0; i < count; ++i) {
    EmbeddingRange& key = keys_.emplace_back();
    key.begin = i;
    key.count = i + 1 < count ? 1 : static_cast<int>(places_.size()) - i;
    key.digest = pictures_[static_cast<size_t>(i)].digest;
  }
}

int PictureGroup::rows_seen_by(int token) const {
  const int picture = std::min(token - begin(), static_cast<int>(ends_.size()) - 1);
  return ends_[static_cast<size_t>(picture)];
}

int PictureGroup::end_of_sight(int token, int end) const {
  return token < pictures_.back().begin ? std::min(token + 1, end) : end;
}

void PictureGroup::read(int row, float* to) const {
  const auto picture = std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin();
  const EmbeddingRange& range = pictures_[static_cast<size_t>(picture)];
  const int first = picture == 0 ? 0 : ends_[static_cast<size_t>(picture) - 1];
  range.rows->read(range.count + row - first, 0, range.rows->width, to);
}

std::vector<PictureGroup> group_pictures(std::span<const EmbeddingRange> pictures, int rows_of_block, int block_len) {
  std::vector<PictureGroup> groups;
  for (size_t first = 0; first < pictures.size();) {
    size_t end = first + 1;
    while (end < pictures.size() && pictures[end].begin == pictures[end - 1].end()) ++end;
    groups.emplace_back(pictures.subspan(first, end - first), rows_of_block, block_len);
    first = end;
  }
  return groups;
}

}  // namespace turbomind
