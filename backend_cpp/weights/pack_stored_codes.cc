#include "weights/pack_stored_codes.h"

#include <algorithm>

namespace turbomind {

bool can_pack(const std::vector<StoredValue>& parts) {
  const StoredMatrix* front = parts[0].codes();
  return front != nullptr && std::all_of(parts.begin(), parts.end(), [&](const StoredValue& part) {
           return part.codes() != nullptr && front->packs_with(*part.codes());
         });
}

LinearStorage pack_stored_codes(const std::vector<StoredValue>& parts, const Loop& loop) {
  std::vector<StoredRow> rows;
  for (const StoredValue& part : parts) {
    for (int row = 0; row < static_cast<int>(part.shape()[0]); ++row) rows.push_back({part.codes(), part.output(row)});
  }
  return parts.at(0).codes()->pack(rows, loop);
}

}  // namespace turbomind
