#include "model/pack_stored_codes.h"

#include <algorithm>

#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

constexpr int kLargestGroup = 128;  // inputs that share the scale of an activation
constexpr int kBlockTiles = 8;      // decoded at a time: a cache line of AWQ's words

// An output of the joined matrix: where its codes are.
struct Row {
  const StoredCodes* codes;
  int output;
};

std::vector<Row> rows_of(const std::vector<StoredValue>& parts) {
  std::vector<Row> rows;
  for (const StoredValue& part : parts) {
    for (int row = 0; row < static_cast<int>(part.shape()[0]); ++row) rows.push_back({part.codes(), part.output(row)});
  }
  return rows;
}

// Codes of rows [first, last), [last - first, in]; neighbours are decoded together.
void read_rows(const std::vector<Row>& rows, int first, int last, uint8_t* codes) {
  while (first < last) {
    const Row& front = rows[static_cast<size_t>(first)];
    int count = 1;
    while (first + count < last && rows[static_cast<size_t>(first + count)].codes == front.codes &&
           rows[static_cast<size_t>(first + count)].output == front.output + count) {
      ++count;
    }
    front.codes->read_codes(front.output, count, codes);
    codes += static_cast<size_t>(count) * front.codes->in_features();
    first += count;
  }
}

}  // namespace

int kernel_group(int stored_group) {
  int group = std::min(kLargestGroup, stored_group) / 8 * 8;
  while (stored_group % group != 0) group -= 8;
  return group;
}

bool can_pack(const std::vector<StoredValue>& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const StoredValue& part) {
    const StoredCodes* front = parts[0].codes();
    const StoredCodes* codes = part.codes();
    return codes != nullptr && front != nullptr && codes->bits() == front->bits() && codes->group() == front->group() &&
           codes->input_order() == front->input_order();
  });
}

LinearStorage pack_stored_codes(const std::vector<StoredValue>& parts, const Loop& loop) {
  const StoredCodes& front = *parts.at(0).codes();
  const std::vector<Row> rows = rows_of(parts);
  const auto out_features = static_cast<int>(rows.size());
  const PackedShape shape{out_features, front.in_features(), front.bits(), kernel_group(front.group())};
  LinearStorage storage;
  storage.data = AlignedBuffer(shape.code_bytes());
  storage.scales = AlignedBuffer(shape.scale_count() * sizeof(half));
  storage.zeros = AlignedBuffer(shape.scale_count());

  const std::vector<int32_t>& order = front.input_order();
  storage.input_order = AlignedBuffer(order.size() * sizeof(int32_t));
  std::copy(order.begin(), order.end(), storage.input_order.as<int32_t>());

  constexpr int kBlockOutputs = kBlockTiles * kTileOutputs;
  loop((out_features + kBlockOutputs - 1) / kBlockOutputs, [&](int block) {
    const int first = block * kBlockOutputs;
    const int last = std::min(first + kBlockOutputs, out_features);
    const auto width = static_cast<size_t>(shape.in_features);
    std::vector<uint8_t> codes(kBlockOutputs * width);
    read_rows(rows, first, last, codes.data());
    for (int output = first; output < last; ++output) {
      const Row& row = rows[static_cast<size_t>(output)];
      const size_t tile = static_cast<size_t>(output) / kTileOutputs;
      for (int g = 0; g < shape.groups(); ++g) {
        const size_t entry = (tile * shape.groups() + g) * kTileOutputs + output % kTileOutputs;
        const int stored_group = row.codes->group_of(g * shape.group);
        storage.scales.as<half>()[entry] = row.codes->scale(stored_group, row.output);
        storage.zeros.as<uint8_t>()[entry] = row.codes->zero(stored_group, row.output);
      }
    }
    for (int output = first; output < last; output += kTileOutputs) {
      const size_t tile = static_cast<size_t>(output) / kTileOutputs;
      pack_tile(shape, codes.data() + (output - first) * width, std::min(kTileOutputs, last - output),
                storage.data.as<uint8_t>() + tile * shape.groups() * shape.group_bytes());
    }
  });

  storage.view = {storage.data.as<void>(),
                  shape.bits == 8 ? WeightFormat::kInt8 : WeightFormat::kInt4,
                  shape.out_features,
                  shape.in_features,
                  nullptr,
                  shape.group,
                  storage.scales.as<half>(),
                  storage.zeros.as<uint8_t>(),
                  storage.input_order.as<int32_t>()};
  return storage;
}

}  // namespace turbomind
