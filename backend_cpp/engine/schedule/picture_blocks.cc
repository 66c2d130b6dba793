#include "engine/schedule/picture_blocks.h"

#include <algorithm>
#include <limits>

namespace turbomind {

namespace {

PrefixKey key_of(const PictureGroup& group, const PrefixKey& sequence) {
  return {sequence.scope, group.places(), group.keys(), sequence.lora_name, sequence.salt, true};
}

}  // namespace

PictureBlocks::PictureBlocks(const std::vector<PictureGroup>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    Held& held = all_.emplace_back();
    held.group = &groups[i];
    held.end = i + 1 < groups.size() ? groups[i + 1].begin() : std::numeric_limits<int>::max();
  }
}

void PictureBlocks::match(BlockCache& cache, const PrefixKey& sequence, int rows_of_block, int cached) {
  for (Held& held : all_) {
    held.is_passed = held.end <= cached;
    if (held.is_passed) continue;
    const PictureGroup& group = *held.group;
    cache.match(key_of(group, sequence), static_cast<int>(group.places().size()), held.blocks);
    held.written = std::min(static_cast<int>(held.blocks.size()) * rows_of_block, group.rows());
  }
}

int PictureBlocks::missing_blocks() const {
  int missing = 0;
  for (const Held& held : all_) {
    if (!held.is_passed) missing += held.group->block_count() - static_cast<int>(held.blocks.size());
  }
  return missing;
}

std::vector<PictureBlocks::Held*> PictureBlocks::unwritten(int begin, int end) {
  std::vector<Held*> found;
  for (Held& held : all_) {
    if (held.group->begin() < end && held.end > begin && !held.is_written()) found.push_back(&held);
  }
  return found;
}

void PictureBlocks::commit(BlockCache& cache, const PrefixKey& sequence) {
  for (Held& held : all_) {
    if (held.planned == 0) continue;
    held.written += held.planned;
    held.planned = 0;
    if (!held.is_written()) continue;
    const PrefixKey key = key_of(*held.group, sequence);
    for (int index = 0; index < held.group->block_count(); ++index) cache.publish(key, index, held.blocks);
  }
}

void PictureBlocks::pass(BlockCache& cache, int cached, bool keeps_content) {
  for (Held& held : all_) {
    if (held.is_passed || held.end > cached) continue;
    held.is_passed = true;
    keeps_content ? cache.release(held.blocks) : cache.release_and_forget(held.blocks);
  }
}

void PictureBlocks::give_up(BlockCache& cache, bool keeps_content) {
  for (Held& held : all_) {
    keeps_content ? cache.release(held.blocks) : cache.release_and_forget(held.blocks);
    held.is_passed = false;
    held.written = 0;
    held.planned = 0;
  }
}

void PictureBlocks::add_fills(std::vector<PictureFill>& fills) const {
  for (const Held& held : all_) {
    if (held.planned > 0) fills.push_back({held.group, held.written, held.planned, &held.blocks});
  }
}

void PictureBlocks::add_looks(int begin, int end, int first_row, std::vector<PictureLook>& looks) const {
  for (const Held& held : all_) {
    const int last = std::min(end, held.end);
    for (int token = std::max(begin, held.group->begin()); token < last;) {
      const int next = held.group->end_of_sight(token, last);
      looks.push_back({first_row + token - begin, next - token, held.group->rows_seen_by(token), &held.blocks});
      token = next;
    }
  }
}

void PictureBlocks::add_blocks(std::vector<int32_t>& blocks) const {
  for (const Held& held : all_) blocks.insert(blocks.end(), held.blocks.begin(), held.blocks.end());
}

bool PictureBlocks::holds_any() const {
  return std::ranges::any_of(all_, [](const Held& held) { return !held.blocks.empty(); });
}

}  // namespace turbomind
