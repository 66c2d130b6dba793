// Which part of a dimension somebody keeps.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace turbomind {

// Ascending ranges of a dimension of `whole` elements.
class Extent {
 public:
  struct Range {
    int begin;
    int end;
  };

  Extent(int whole) : whole_(whole), ranges_{{0, whole}} {}  // all of it; a plain size means that too
  Extent(int whole, Range kept) : whole_(whole), ranges_{kept} {}

  int whole() const { return whole_; }
  const std::vector<Range>& ranges() const { return ranges_; }
  int size() const {
    int size = 0;
    for (const Range& range : ranges_) size += range.end - range.begin;
    return size;
  }
  bool is_whole() const { return size() == whole_; }

  // Each element becomes `count` neighbouring ones.
  Extent times(int count) const {
    Extent result = *this;
    result.whole_ *= count;
    for (Range& range : result.ranges_) range = {range.begin * count, range.end * count};
    return result;
  }
  // Dimensions one behind another.
  static Extent joined(std::initializer_list<Extent> parts) {
    Extent result(0, {0, 0});
    result.ranges_.clear();
    for (const Extent& part : parts) {
      for (const Range& range : part.ranges_) {
        result.ranges_.push_back({result.whole_ + range.begin, result.whole_ + range.end});
      }
      result.whole_ += part.whole_;
    }
    return result;
  }

 private:
  int whole_;
  std::vector<Range> ranges_;
};

}  // namespace turbomind
