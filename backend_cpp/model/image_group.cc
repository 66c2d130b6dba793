#include "model/image_group.h"

#include <algorithm>
#include <cstddef>

namespace turbomind {

namespace {

int blocks_of(int count, int block_len) {
  return (count + block_len - 1) / block_len;
}

}  // namespace

ImageGroup::ImageGroup(std::span<const EmbeddingRange> images, int rows_of_block, int block_len)
    : images_(images.begin(), images.end()) {
  for (const EmbeddingRange& image : images_) {
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + image.cross_tokens());
  }
  const int count = static_cast<int>(images_.size());
  block_count_ = std::max(blocks_of(rows(), rows_of_block), blocks_of(count, block_len));
  tokens_.resize(static_cast<size_t>(block_count_) * static_cast<size_t>(block_len));
  for (int i = 0; i < count; ++i) {
    EmbeddingRange& key = keys_.emplace_back();
    key.begin = i;
    key.count = i + 1 < count ? 1 : static_cast<int>(tokens_.size()) - i;
    key.digest = images_[static_cast<size_t>(i)].digest;
  }
}

int ImageGroup::tokens_seen_by(int token) const {
  const int image = std::min(token - begin(), static_cast<int>(ends_.size()) - 1);
  return ends_[static_cast<size_t>(image)];
}

int ImageGroup::end_of_visible(int token, int end) const {
  return token < images_.back().begin ? std::min(token + 1, end) : end;
}

void ImageGroup::read(int row, float* to) const {
  const auto image = std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin();
  const EmbeddingRange& range = images_[static_cast<size_t>(image)];
  const int first = image == 0 ? 0 : ends_[static_cast<size_t>(image) - 1];
  range.rows->read(range.count + row - first, 0, range.rows->width, to);
}

std::vector<ImageGroup> group_images(std::span<const EmbeddingRange> images, int rows_of_block, int block_len) {
  std::vector<ImageGroup> groups;
  for (size_t first = 0; first < images.size();) {
    size_t end = first + 1;
    while (end < images.size() && images[end].begin == images[end - 1].end()) ++end;
    groups.emplace_back(images.subspan(first, end - first), rows_of_block, block_len);
    first = end;
  }
  return groups;
}

}  // namespace turbomind
