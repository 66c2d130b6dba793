#include "engine/plan_caches.h"

#include <utility>

namespace turbomind {

CachePlan plan_caches(const ModelRunner& runner, const ModelRunner* draft_runner, const StepLimits& limits) {
  std::vector<CacheGroup> groups = runner.cache_groups(limits);
  if (draft_runner != nullptr) {
    for (CacheGroup& group : draft_runner->cache_groups(limits)) {
      group.kind =
          MemoryKind::kDraft;  // whatever its layers look at: what a window has passed may be drafted from again
      group.is_apart = !runner.traits().shares_cache;
      groups.push_back(std::move(group));
    }
  }
  return plan_cache(limits.block_len, std::move(groups));
}

}  // namespace turbomind
