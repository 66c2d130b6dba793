// Which requests may find each other's cached blocks: those of one scope.
#pragma once

#include <cstdint>
#include <iterator>
#include <list>
#include <string>
#include <unordered_map>

namespace turbomind {

class CacheScopes {
 public:
  static constexpr uint64_t kShared = 0;  // of all requests without a salt

  // `most` salts are remembered. One that was forgotten gets a new scope: what was cached in its name is not found.
  explicit CacheScopes(size_t most = 4096) : most_(most) {}

  // `adapter`: of the rows; 0: none. What adapters add is in the keys and values.
  uint64_t of(const std::string& salt, uint64_t adapter = 0) {
    if (salt.empty() && adapter == 0) return kShared;
    const std::string key = std::to_string(adapter) + ":" + salt;
    if (const auto it = places_.find(key); it != places_.end()) {
      used_.splice(used_.end(), used_, it->second);
      return it->second->scope;
    }
    if (places_.size() == most_) {
      places_.erase(used_.front().key);
      used_.pop_front();
    }
    used_.push_back({key, fresh()});
    places_.emplace(key, std::prev(used_.end()));
    return used_.back().scope;
  }

  // One that nobody else has.
  uint64_t fresh() { return next_++; }

 private:
  struct Salted {
    std::string key;
    uint64_t scope;
  };

  size_t most_;
  std::list<Salted> used_;  // least recently used first
  std::unordered_map<std::string, std::list<Salted>::iterator> places_;
  uint64_t next_ = kShared + 1;
};

}  // namespace turbomind
