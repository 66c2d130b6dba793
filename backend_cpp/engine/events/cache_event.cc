#include "engine/events/cache_event.h"

#include <algorithm>

#include "base/json.h"

namespace turbomind {

namespace {

template <class T>
void append_list(std::string& line, const char* name, const std::vector<T>& numbers) {
  line += name;
  const char* separator = "[";
  for (const T number : numbers) {
    line += separator + std::to_string(number);
    separator = ",";
  }
  line += numbers.empty() ? "[]" : "]";
}

const char* medium_of(CacheTier tier) {
  switch (tier) {
    case CacheTier::kDevice:
      return R"(,"medium":"GPU")";
    case CacheTier::kHost:
      return R"(,"medium":"CPU")";
    case CacheTier::kDisk:
      break;
  }
  return R"(,"medium":"DISK")";
}

void append_stored(std::string& line, const CacheEvent& event, int block_len) {
  line += R"({"type":"BlockStored")";
  append_list(line, R"(,"block_hashes":)", event.hashes);
  line += R"(,"parent_block_hash":)" + (event.parent ? std::to_string(*event.parent) : "null");
  append_list(line, R"(,"token_ids":)", event.tokens);
  line += R"(,"block_size":)" + std::to_string(block_len) + R"(,"lora_id":null)";
  line += medium_of(event.tier);
  line += R"(,"lora_name":)" + (event.lora_name.empty() ? "null" : quoted(event.lora_name));
  if (std::ranges::all_of(event.extra_keys, &std::string::empty)) {
    line += '}';
    return;
  }
  const char* separator = R"(,"extra_keys":[)";
  for (const std::string& keys : event.extra_keys) {
    line += separator + (keys.empty() ? "null" : keys);
    separator = ",";
  }
  line += "]}";
}

void append(std::string& line, const CacheEvent& event, int block_len) {
  switch (event.kind) {
    case CacheEventKind::kStored:
      return append_stored(line, event, block_len);
    case CacheEventKind::kRemoved:
      append_list(line, R"({"type":"BlockRemoved","block_hashes":)", event.hashes);
      line += medium_of(event.tier);
      line += '}';
      return;
    case CacheEventKind::kCleared:
      line += R"({"type":"AllBlocksCleared"})";
  }
}

}  // namespace

std::string event_line(const CacheEventBatch& batch, int block_len) {
  std::string line = R"({"sequence":)" + std::to_string(batch.sequence) + R"(,"events":)";
  char separator = '[';
  for (const CacheEvent& event : batch.events) {
    line += separator;
    append(line, event, block_len);
    separator = ',';
  }
  return line + "]}\n";
}

}  // namespace turbomind
