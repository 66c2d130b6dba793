// LRU map.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace turbomind {

template <class Key, class Value>
class RecentMap {
 public:
  // Holds at most `limit` values, at least one.
  explicit RecentMap(size_t limit) : max_count_(limit) {}

  // The value of `key`; made by make() where there is none. Valid until the next call. What make() throws passes
  // through, and nothing has changed.
  template <class Make>
  Value& get(const Key& key, Make&& make) {
    if (const auto known = index_.find(key); known != index_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
    } else {
      entries_.emplace_front(key, make());
      index_[key] = entries_.begin();
      if (entries_.size() > max_count_) {
        index_.erase(entries_.back().first);
        entries_.pop_back();
      }
    }
    return entries_.front().second;
  }
  size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<std::pair<Key, Value>>;

  size_t max_count_;
  Entries entries_;  // the one asked for last comes first
  std::map<Key, typename Entries::iterator> index_;
};

}  // namespace turbomind
