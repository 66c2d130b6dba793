#include "weights/pack_quantized.h"

#include <algorithm>

namespace turbomind {

bool can_pack(const std::vector<ManifestValue>& parts, bool takes_mins) {
  const QuantizedMatrix* front = parts[0].codes();
  return front != nullptr && std::all_of(parts.begin(), parts.end(), [&](const ManifestValue& part) {
           return part.codes() != nullptr && front->packs_with(*part.codes()) &&
                  (takes_mins || !part.codes()->has_mins());
         });
}

LinearStorage pack_quantized(const std::vector<ManifestValue>& parts, const Loop& loop) {
  std::vector<QuantizedRow> rows;
  for (const ManifestValue& part : parts) {
    for (int row = 0; row < static_cast<int>(part.shape()[0]); ++row) rows.push_back({part.codes(), part.output(row)});
  }
  return parts.at(0).codes()->pack(rows, loop);
}

}  // namespace turbomind
