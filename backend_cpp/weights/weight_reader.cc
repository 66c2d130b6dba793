#include "weights/weight_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/packed_weight.h"
#include "weights/manifest_value.h"

namespace turbomind {

AlignedBuffer WeightReader::vector(const std::string& name, const Slice& size) const {
  AlignedBuffer buffer(static_cast<size_t>(size.size()) * sizeof(float));
  checkpoint_.read<float>(name, {size}, buffer.as<float>(), loop_or_none(in_order));
  return buffer;
}

LinearStorage WeightReader::matrix(const std::string& name, const Slice& out_features, const Slice& in_features,
                                   DType dtype, const Loop& over_rows) const {
  const Loop loop = loop_or_none(over_rows);
  LinearStorage storage;
  storage.data = AlignedBuffer(static_cast<size_t>(out_features.size()) * in_features.size() * byte_size(dtype));
  if (dtype == DType::kFloat32) {
    checkpoint_.read<float>(name, {out_features, in_features}, storage.data.as<float>(), loop);
  } else if (dtype == DType::kFloat16) {
    checkpoint_.read<half>(name, {out_features, in_features}, storage.data.as<half>(), loop);
  } else {
    checkpoint_.read<bf16>(name, {out_features, in_features}, storage.data.as<bf16>(), loop);
  }
  storage.view = {storage.data.as<void>(), format_of(dtype), out_features.size(), in_features.size()};
  return storage;
}

void WeightReader::tile(LinearStorage& storage, const Loop& over_tiles) const {
  LinearWeight& weight = storage.view;
  if (!options_.is_tiled || weight.data == nullptr || weight.is_packed()) return;
  // In place where there are no zeros to add: a table of all tokens is not in memory twice.
  const bool is_in_place = tiled_bytes(weight) == storage.data.size();
  AlignedBuffer tiles = is_in_place ? std::move(storage.data) : AlignedBuffer(tiled_bytes(weight));
  const AlignedBuffer& source = is_in_place ? tiles : storage.data;
  const int count = (weight.out_features + kTileOutputs - 1) / kTileOutputs;
  const size_t rows_bytes = source.size() / weight.out_features * kTileOutputs;
  const size_t tile_bytes = tiles.size() / count;
  loop_or_none(over_tiles)(count, [&](int tile) {
    LinearWeight rows = weight;
    rows.out_features = std::min(kTileOutputs, weight.out_features - tile * kTileOutputs);
    const auto* first = source.as<std::byte>() + tile * rows_bytes;
    const std::vector<std::byte> copied(first, first + rows_bytes / kTileOutputs * rows.out_features);
    rows.data = copied.data();
    tile_rows(rows, tiles.as<std::byte>() + tile * tile_bytes);
  });
  storage.data = std::move(tiles);
  weight.data = storage.data.as<void>();
  weight.is_tiled = true;
}

LinearStorage WeightReader::table(const std::string& name, int rows, int size, const Loop& loop) const {
  const std::vector<ManifestValue> parts = checkpoint_.parts(name, {rows, size});
  if (options_.takes_gguf_blocks && can_pack(parts, true)) {
    LinearStorage quantized = pack_quantized(parts, true, loop_or_none(loop));
    const LinearWeight& view = quantized.view;
    const bool has_scales_alone = view.zeros == nullptr && view.input_order == nullptr && view.output_scales == nullptr;
    if (view.format != WeightFormat::kFloat8 && view.scales != nullptr && has_scales_alone) return quantized;
  }
  return matrix(name, rows, size, options_.dtype, loop);
}

LinearStorage WeightReader::linear(const std::string& name, const Slice& out_features, const Slice& in_features,
                                   bool has_bias) const {
  const Loop loop = loop_or_none(in_order);
  LinearStorage storage;
  const std::vector<ManifestValue> parts = checkpoint_.parts(name + ".weight", {out_features, in_features});
  if (can_pack(parts, options_.takes_gguf_blocks)) {
    storage = pack_quantized(parts, options_.takes_gguf_blocks, loop);
  } else if (options_.bits == 0) {
    storage = matrix(name + ".weight", out_features, in_features, options_.dtype);
    tile(storage);
  } else {
    const LinearStorage exact = matrix(name + ".weight", out_features, in_features, DType::kFloat32);
    storage = round_matrix(exact.data.as<float>(), exact.view.out_features, exact.view.in_features, options_.bits,
                           options_.group, loop);
  }
  storage.name = name;
  storage.outputs = out_features;
  storage.inputs = in_features;
  if (has_bias && in_features.holds(0)) {
    storage.bias = vector(name + ".bias", out_features);
    storage.view.bias = storage.bias.as<float>();
  }
  return storage;
}

Slice WeightReader::as_stored(const std::string& name, int out_features, const Slice& in_features) const {
  if (in_features.is_whole()) return in_features;
  const std::vector<ManifestValue> parts = checkpoint_.parts(name + ".weight", {out_features, in_features.whole()});
  const QuantizedMatrix* quantized = parts.front().quantized();
  const std::vector<int32_t> order = quantized != nullptr ? quantized->input_order() : std::vector<int32_t>();
  if (order.empty()) return in_features;
  std::vector<int32_t> elements = in_features.elements();
  for (int32_t& element : elements) element = order[static_cast<size_t>(element)];
  return Slice::of(in_features.whole(), elements);
}

LinearStorage round_matrix(const float* w, int out_features, int in_features, int bits, int group, const Loop& loop) {
  const PackedShape shape{out_features, in_features, bits, group};
  LinearStorage storage;
  storage.data = AlignedBuffer(shape.quantized_bytes());
  storage.scales = AlignedBuffer(shape.scale_count() * sizeof(half));
  loop(shape.tiles(), [&](int tile) {
    const int first = tile * kTileOutputs;
    const size_t groups = static_cast<size_t>(tile) * shape.groups();
    quantize_and_pack_tile(
        shape, w + static_cast<size_t>(first) * in_features, std::min(kTileOutputs, out_features - first),
        storage.data.as<uint8_t>() + groups * shape.group_bytes(), storage.scales.as<half>() + groups * kTileOutputs);
  });
  storage.set_view(shape);
  return storage;
}

}  // namespace turbomind
