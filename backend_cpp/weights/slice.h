// Slice of a dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace turbomind {

// Some elements of a dimension of `whole` elements, in an order.
class Slice {
 public:
  struct Range {
    int begin;
    int end;
  };

  Slice(int whole) : whole_(whole), ranges_{{0, whole}} {}  // all of it; a plain size means that too
  Slice(int whole, Range kept) : whole_(whole), ranges_{kept} {}

  int whole() const { return whole_; }
  const std::vector<Range>& ranges() const { return ranges_; }
  int size() const {
    int size = 0;
    for (const Range& range : ranges_) size += range.end - range.begin;
    return size;
  }
  bool is_whole() const { return size() == whole_; }
  bool holds(int element) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [element](const Range& range) { return range.begin <= element && element < range.end; });
  }
  std::vector<int32_t> elements() const {
    std::vector<int32_t> elements;
    for (const Range& range : ranges_) {
      for (int element = range.begin; element < range.end; ++element) elements.push_back(element);
    }
    return elements;
  }

  static Slice of(int whole, const std::vector<int32_t>& elements) {
    Slice result(whole);
    result.ranges_.clear();
    for (const int32_t element : elements) {
      if (result.ranges_.empty() || result.ranges_.back().end != element) result.ranges_.push_back({element, element});
      ++result.ranges_.back().end;
    }
    return result;
  }
  // Each element becomes `count` neighbouring ones.
  Slice times(int count) const {
    Slice result = *this;
    result.whole_ *= count;
    for (Range& range : result.ranges_) range = {range.begin * count, range.end * count};
    return result;
  }
  // Dimensions one after another.
  static Slice joined(std::initializer_list<Slice> parts) {
    Slice result(0, {0, 0});
    result.ranges_.clear();
    for (const Slice& part : parts) {
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
