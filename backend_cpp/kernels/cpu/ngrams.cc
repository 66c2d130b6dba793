#include "kernels/ngrams.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/for_rows.h"

namespace turbomind {

namespace {

// Worth as much of a thread's time as that many elements: a row may come from a disk.
constexpr int kRowElements = 4096;

}  // namespace

bool StoredRows::read(int64_t index, float* to) const {
  static thread_local std::vector<std::byte> bytes;
  const Part* part = std::ranges::upper_bound(parts, parts + part_count, index, {}, &Part::end);
  const int64_t row = index - (part == parts ? 0 : part[-1].end);
  bytes.resize(part->row_bytes);
  const auto offset = part->offset + row * static_cast<int64_t>(bytes.size());
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::pread(part->file, bytes.data() + done, bytes.size() - done,
                                  static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  part->decode(bytes.data(), to);
  return true;
}

void EmbedNgrams::run(ThreadPool& pool) const {
  const int before = max_n - 1;
  const size_t width = static_cast<size_t>(before) * static_cast<size_t>(heads) * static_cast<size_t>(table.size);
  std::vector<int32_t> history;
  std::atomic<bool> has_failed = false;
  for (int s = 0; s < context.span_count; ++s) {
    const StateSpan& span = context.spans[s];
    if (span.count == 0) continue;
    auto* state = reinterpret_cast<int32_t*>(context.state(span.page));
    history.assign(static_cast<size_t>(before), end_token);
    if (span.is_fresh == 0) std::copy_n(state, before, history.begin());
    history.insert(history.end(), tokens + span.first_token, tokens + span.first_token + span.count);
    std::copy_n(history.end() - before, before, state);
    for_rows(pool, span.count, kRowElements, [&](size_t row) {
      const int32_t* newest = history.data() + before + row;
      float* to = out + (static_cast<size_t>(span.first_token) + row) * width;
      const int32_t* of_head = sizes;
      uint64_t mixed = static_cast<uint64_t>(*newest) * multipliers[0];
      int64_t offset = 0;
      bool is_within = true;
      for (int k = 1; k <= before; ++k) {
        is_within = is_within && newest[-k] != end_token;
        mixed ^= static_cast<uint64_t>(is_within ? newest[-k] : end_token) * multipliers[k];
        for (int head = 0; head < heads; ++head, ++of_head, to += table.size) {
          const auto row_of_head = static_cast<int64_t>(mixed % static_cast<uint64_t>(*of_head));
          if (!table.read(offset + row_of_head, to)) has_failed = true;
          offset += *of_head;
        }
      }
    });
  }
  if (has_failed) throw internal_error("a file of the model does not give a row of its tables: was it changed?");
}

void GateNgrams::run(ThreadPool& pool) const {
  const auto width = static_cast<size_t>(size);
  for_rows(pool, rows * count, 4 * size, [&](size_t item) {
    const float* key = keys + item * width;
    const float* query = queries + item * width;
    const float* value = values + item / static_cast<size_t>(count) * width;
    double product = 0;
    for (size_t i = 0; i < width; ++i) product += double{key[i]} * double{query[i]};
    const auto score = static_cast<float>(product / std::sqrt(static_cast<double>(size)));
    const float root = score == 0 ? 0 : std::copysign(std::sqrt(std::max(std::abs(score), 1e-6F)), score);
    const float gate = 1 / (1 + std::exp(-root));
    for (size_t i = 0; i < width; ++i) out[item * width + i] = gate * value[i];
  });
}

}  // namespace turbomind
