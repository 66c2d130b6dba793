// Every table of CPU kernels that this processor can use, against float64.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/packed_weight.h"
#include "kernels/paged_attention.h"
#include "kernels/sampling.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr int kOutputs = 40;  // two tiles, and a part of one
constexpr int kInputs = 160;
constexpr int kGroup = 32;
constexpr int kGroups = kInputs / kGroup;
constexpr int kMaxRows = 60;
constexpr double kUlp = 1.0 / (1 << 23);

void for_each_table(const std::function<void(const KernelTable&)>& check) {
  const std::string before = kernels().name;
  for (const std::string& isa : supported_isas()) {
    select_isa(isa);
    check(kernels());
  }
  select_isa(before);
}

class Numbers {
 public:
  int whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  std::vector<float> real(size_t count, float range) {
    std::vector<float> values(count);
    for (float& value : values) value = std::uniform_real_distribution<float>(-range, range)(engine_);
    return values;
  }

 private:
  std::mt19937 engine_{7};
};

void check_near(double value, double expected, double tolerance, const char* what, const KernelTable& table) {
  if (std::abs(value - expected) <= tolerance) return;
  throw Failure(std::string(table.name) + ": " + what + ": " + std::to_string(value) + " instead of " +
                std::to_string(expected) + ", allowed " + std::to_string(tolerance));
}

// A weight, and what its numbers are.
struct Weight {
  LinearWeight linear;
  std::vector<double> values;  // [outputs, inputs]
  std::vector<uint8_t> data;
  std::vector<half> scales;
  std::vector<half> mins;
  std::vector<uint8_t> zeros;
  std::vector<float> bias;
};

double float8_value(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const double mantissa = (code & 7) / 8.0;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

template <class T, class Convert>
void set_values(Weight& weight, const std::vector<float>& values, Convert&& convert) {
  weight.data.resize(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = convert(values[i]);
    std::memcpy(weight.data.data() + i * sizeof(T), &value, sizeof(T));
    weight.values.push_back(to_float(value));
  }
}

enum class Kind : uint8_t { kScaled, kShifted, kWithMins };

void set_quantized(Weight& weight, Kind kind, Numbers& numbers) {
  weight.linear.group = kGroup;
  const PackedShape shape = packed_shape(weight.linear);
  const int last_code = (1 << shape.bits) - 1;
  std::vector<uint8_t> codes(static_cast<size_t>(kOutputs) * kInputs);
  for (uint8_t& code : codes) {
    do code = static_cast<uint8_t>(numbers.whole(0, last_code));
    while (shape.is_float8 && (code & 0x7F) == 0x7F);  // no number
  }
  if (!shape.is_float8) {
    for (size_t i = 0; i < shape.scale_count(); ++i) {
      weight.scales.push_back(to_half(static_cast<float>(numbers.whole(1, 1000)) / 1024));
      if (kind == Kind::kWithMins) weight.mins.push_back(to_half(static_cast<float>(numbers.whole(-99, 99)) / 32));
      if (kind == Kind::kShifted) weight.zeros.push_back(static_cast<uint8_t>(numbers.whole(0, last_code)));
    }
  }
  weight.data.resize(shape.quantized_bytes());
  for (int tile = 0; tile < shape.tiles(); ++tile) {
    const int first = tile * kTileOutputs;
    pack_tile(shape, codes.data() + static_cast<size_t>(first) * kInputs, std::min(kTileOutputs, kOutputs - first),
              weight.data.data() + tile * shape.group_bytes() * shape.groups());
  }
  for (int output = 0; output < kOutputs; ++output) {
    for (int input = 0; input < kInputs; ++input) {
      const uint8_t code = codes[static_cast<size_t>(output) * kInputs + input];
      const size_t at = (static_cast<size_t>(output / kTileOutputs) * kGroups + input / kGroup) * kTileOutputs +
                        output % kTileOutputs;
      const double scale = shape.is_float8 ? 1 : to_float(weight.scales[at]);
      weight.values.push_back(shape.is_float8           ? float8_value(code)
                              : kind == Kind::kWithMins ? scale * code + to_float(weight.mins[at])
                              : kind == Kind::kShifted  ? scale * (code - weight.zeros[at])
                                                        : scale * (code - shape.zero_point()));
    }
  }
  weight.linear.scales = weight.scales.empty() ? nullptr : weight.scales.data();
  weight.linear.mins = weight.mins.empty() ? nullptr : weight.mins.data();
  weight.linear.zeros = weight.zeros.empty() ? nullptr : weight.zeros.data();
}

Weight random_weight(WeightFormat format, Kind kind, Numbers& numbers) {
  Weight weight;
  weight.linear.format = format;
  weight.linear.out_features = kOutputs;
  weight.linear.in_features = kInputs;
  weight.bias = numbers.real(kOutputs, 1);
  weight.linear.bias = weight.bias.data();
  const std::vector<float> values = numbers.real(static_cast<size_t>(kOutputs) * kInputs, 1);
  if (weight.linear.is_packed()) {
    set_quantized(weight, kind, numbers);
  } else if (format == WeightFormat::kFloat32) {
    set_values<float>(weight, values, [](float value) { return value; });
  } else if (format == WeightFormat::kFloat16) {
    set_values<half>(weight, values, to_half);
  } else {
    set_values<bf16>(weight, values, to_bf16);
  }
  weight.linear.data = weight.data.data();
  return weight;
}

// Rows that no format rounds: whole numbers of 8 bits, with the largest in every group.
std::vector<float> exact_rows(Numbers& numbers) {
  std::vector<float> x(static_cast<size_t>(kMaxRows) * kInputs);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % kGroup == 5 ? 127 : numbers.whole(-127, 127));
  return x;
}

void check_products(const KernelTable& table, const Weight& weight, const std::vector<float>& x, int rows) {
  std::vector<float> y(static_cast<size_t>(rows) * kOutputs);
  multiply(table, weight.linear, x.data(), rows, y.data());
  for (int row = 0; row < rows; ++row) {
    for (int output = 0; output < kOutputs; ++output) {
      double expected = weight.bias[output];
      double size = std::abs(expected);
      for (int input = 0; input < kInputs; ++input) {
        const double product = x[row * kInputs + input] * weight.values[static_cast<size_t>(output) * kInputs + input];
        expected += product;
        size += std::abs(product);
      }
      check_near(y[row * kOutputs + output], expected, kInputs * kUlp * size, "a product", table);
    }
  }
}

// The rows of a tiled weight: each number of them that kernels take at once, and those left.
void check_tiles(const KernelTable& table, Weight weight, const std::vector<float>& x) {
  std::vector<std::byte> tiles(tiled_bytes(weight.linear));
  tile_rows(weight.linear, tiles.data());
  weight.linear.data = tiles.data();
  weight.linear.is_tiled = true;
  for (int rows = 1; rows <= 28; ++rows) check_products(table, weight, x, rows);
  check_products(table, weight, x, kMaxRows);
}

}  // namespace

TEST(every_table_multiplies_every_format_of_weights) {
  for_each_table([](const KernelTable& table) {
    Numbers numbers;
    const std::vector<float> x = exact_rows(numbers);
    for (const WeightFormat format :
         {WeightFormat::kFloat32, WeightFormat::kBFloat16, WeightFormat::kFloat16, WeightFormat::kInt8,
          WeightFormat::kInt6, WeightFormat::kInt5, WeightFormat::kInt4, WeightFormat::kFloat8}) {
      for (const Kind kind : {Kind::kScaled, Kind::kShifted, Kind::kWithMins}) {
        const Weight weight = random_weight(format, kind, numbers);
        for (const int rows : {1, 2, 3, 5, 8, 9, kMaxRows}) check_products(table, weight, x, rows);
        if (!weight.linear.is_packed()) check_tiles(table, weight, x);
        if (weight.scales.empty()) break;  // there is one kind
      }
    }
  });
}

TEST(every_table_norms_and_activates_rows) {
  constexpr int kSize = 45;
  for_each_table([](const KernelTable& table) {
    Numbers numbers;
    const std::vector<float> x = numbers.real(kSize, 8);
    const std::vector<float> weight = numbers.real(kSize, 2);
    std::vector<float> y(kSize);
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * value;
    table.norm_row({NormKind::kRms, 1e-5f, weight.data(), nullptr}, x.data(), kSize, y.data());
    for (int i = 0; i < kSize; ++i) {
      const double expected = x[i] / std::sqrt(squares / kSize + 1e-5) * weight[i];
      check_near(y[i], expected, 1e-5 * std::abs(expected), "a normed number", table);
    }
    const auto check_activation = [&](Activation activation, const char* name, auto&& function) {
      table.activate_row(activation, x.data(), weight.data(), kSize, y.data());
      for (int i = 0; i < kSize; ++i) {
        check_near(y[i], function(static_cast<double>(x[i])) * weight[i], 1e-5, name, table);
      }
    };
    check_activation(Activation::kSilu, "silu", [](double v) { return v / (1 + std::exp(-v)); });
    check_activation(Activation::kGelu, "gelu", [](double v) { return v / 2 * (1 + std::erf(v / std::sqrt(2.0))); });
    check_activation(Activation::kSoftplus, "softplus", [](double v) { return std::log1p(std::exp(v)); });
    check_activation(Activation::kRelu2, "relu2", [](double v) { return v > 0 ? v * v : 0; });
    y = x;
    table.scale_softcap_row(0.5f, 3.0f, kSize, y.data());
    for (int i = 0; i < kSize; ++i) check_near(y[i], 3 * std::tanh(x[i] * 0.5 / 3), 1e-5, "a capped number", table);
  });
}

TEST(every_table_finds_the_largest_logit_and_sums_their_weights) {
  constexpr int kSize = 1003;
  for_each_table([](const KernelTable& table) {
    Numbers numbers;
    std::vector<float> logits = numbers.real(kSize, 20);
    const float largest = *std::max_element(logits.begin(), logits.end());
    CHECK_EQUAL(logits[table.argmax(logits.data(), kSize)], largest);
    std::vector<float> chunks(kSize);
    std::vector<float> weights(kSize);
    table.chunk_maxima(logits.data(), kSize, chunks.data());
    CHECK_EQUAL(*std::max_element(chunks.begin(), chunks.begin() + (kSize + kLogitChunk - 1) / kLogitChunk), largest);
    table.exp_weights(logits.data(), kSize, largest, 0.7f, weights.data(), chunks.data());
    for (int i = 0; i < kSize; ++i) {
      const double expected = std::exp((static_cast<double>(logits[i]) - largest) * 0.7f);
      check_near(weights[i], expected, 1e-5 * expected + 1e-37, "a weight", table);
    }
    logits[kSize - 2] = std::nanf("");
    CHECK_EQUAL(table.argmax(logits.data(), kSize), -1);
  });
}

TEST(every_table_attends_to_every_type_of_cache) {
  constexpr int kTokens = 70;
  constexpr int kRows = 5;
  constexpr int kKeyDim = 24;
  constexpr int kValueDim = 18;
  for (const CacheType type : {CacheType::kFloat32, CacheType::kBFloat16, CacheType::kInt8, CacheType::kInt4}) {
    const bool is_quantized = type == CacheType::kInt8 || type == CacheType::kInt4;
    const double tolerance = type == CacheType::kFloat32 ? 1e-5 : 0.03;
    Numbers numbers;
    ThreadPool pool(1);
    std::vector<float> keys = numbers.real(static_cast<size_t>(kTokens) * kKeyDim, 1);
    std::vector<float> values = numbers.real(static_cast<size_t>(kTokens) * kValueDim, 1);
    std::vector<float> queries = numbers.real(static_cast<size_t>(kRows) * 2 * kKeyDim, 1);
    AttentionParams params;
    params.layout = {type, 1, 1, kKeyDim, kValueDim, 16};
    params.num_heads = 2;
    const std::vector<int32_t> blocks{3, 1, 4, 0, 2};
    std::vector<std::byte> memory(blocks.size() * params.layout.block_bytes());
    params.pool = memory.data();
    AttentionSpan span{0, kTokens, 0, blocks.data()};
    params.spans = &span;
    params.span_count = 1;
    rope_and_write(pool, {}, params, {}, nullptr, rows_view(keys.data(), kTokens, kKeyDim),
                   rows_view(values.data(), kTokens, kValueDim));
    span = {0, kRows, kTokens - kRows, blocks.data()};
    const auto attend = [&] {
      std::vector<float> workspace(attention_workspace_floats(params));
      std::vector<float> out(static_cast<size_t>(kRows) * 2 * kValueDim);
      const HeadsView view{queries.data(), kRows, static_cast<size_t>(2) * kKeyDim, 2, kKeyDim, kKeyDim};
      paged_attention(pool, params, view, workspace.data(), out.data());
      return out;
    };
    std::vector<double> expected(static_cast<size_t>(kRows) * 2 * kValueDim);
    if (is_quantized) {  // of the same codes
      const std::string before = kernels().name;
      select_isa("scalar");
      std::ranges::copy(attend(), expected.begin());
      select_isa(before);
    } else {
      for (int head = 0; head < kRows * 2; ++head) {
        const int seen = kTokens - kRows + 1 + head / 2;
        std::vector<double> weights(static_cast<size_t>(seen));
        double total = 0;
        for (int t = 0; t < seen; ++t) {
          double score = 0;
          for (int d = 0; d < kKeyDim; ++d) {
            score += static_cast<double>(queries[head * kKeyDim + d]) * keys[t * kKeyDim + d];
          }
          total += weights[t] = std::exp(score);
        }
        for (int t = 0; t < seen; ++t) {
          for (int d = 0; d < kValueDim; ++d) {
            expected[head * kValueDim + d] += weights[t] / total * values[t * kValueDim + d];
          }
        }
      }
    }
    for_each_table([&](const KernelTable& table) {
      const std::vector<float> out = attend();
      for (size_t i = 0; i < out.size(); ++i) check_near(out[i], expected[i], tolerance, "a result", table);
    });
  }
}

}  // namespace turbomind::testing
