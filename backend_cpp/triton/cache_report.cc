#include "triton/cache_report.h"

#include <initializer_list>
#include <utility>

#include "base/json.h"

namespace turbomind {

namespace {

std::string object(std::initializer_list<std::pair<const char*, int64_t>> members) {
  std::string text;
  for (const auto& [name, value] : members) {
    text += (text.empty() ? "{" : ", ") + quoted(name) + ": " + std::to_string(value);
  }
  return text + "}";
}

}  // namespace

std::string as_json(const CacheReport& report) {
  const EngineStats& stats = report.stats;
  const auto bytes = [&](int pages) { return static_cast<int64_t>(report.page_bytes) * pages; };
  const std::string device = object({{"pages", stats.blocks_total},
                                     {"used", stats.blocks_used},
                                     {"idle", stats.blocks_idle},
                                     {"bytes", bytes(stats.blocks_used + stats.blocks_idle)}});
  const std::string host = object(
      {{"pages", stats.host_blocks_total}, {"used", stats.host_blocks_used}, {"bytes", bytes(stats.host_blocks_used)}});
  const std::string disk = object({{"files", stats.disk.files},
                                   {"bytes", stats.disk.bytes},
                                   {"written", stats.disk.written},
                                   {"read", stats.disk.read},
                                   {"damaged", stats.disk.damaged},
                                   {"failures", stats.disk.failures}});
  const std::string pinned = object(
      {{"prompts", report.pinned_prompts}, {"pages", report.pinned_pages}, {"most_pages", report.most_pinned_pages}});
  return "{" + quoted("device") + ": " + device + ", " + quoted("host") + ": " + host + ", " + quoted("disk") + ": " +
         (report.has_files ? disk : "null") + ", " + quoted("pinned") + ": " + pinned + ", " + quoted("tokens") + ": " +
         std::to_string(report.tokens) + "}";
}

}  // namespace turbomind
