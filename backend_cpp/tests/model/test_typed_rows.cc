// Operators take the types that they say they know, and refuse others before they read anything.
#include <string>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "kernels/streams.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr int kSize = 8;

bool is_rejected(const LinearInput& input, const TypedRows& y) {
  const std::vector<float> ones(kSize * kSize, 1);
  LinearWeight weight;
  weight.data = ones.data();
  weight.in_features = weight.out_features = kSize;
  const auto ops = find_device("cpu").make(1);
  const LinearTypes types = ops->types_of(weight, 1);
  CHECK(types.rows == DType::kFloat32 && types.result == DType::kFloat32);
  try {
    ops->linear(weight, input, 1, y, false);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInternal);
    return true;
  }
  return false;
}

}  // namespace

TEST(rows_of_a_type_that_an_operator_does_not_know_are_refused) {
  const std::vector<float> x(kSize, 2);
  std::vector<float> y(kSize);
  CHECK(!is_rejected(x.data(), y.data()));
  CHECK_EQUAL(y[kSize - 1], 2.0F * kSize);
  CHECK(is_rejected(ConstTypedRows(x.data(), DType::kBFloat16), y.data()));
  CHECK(is_rejected(x.data(), {y.data(), DType::kFloat16}));
  CHECK_EQUAL(ConstTypedRows(x.data(), DType::kFloat16).from(4).data, static_cast<const void*>(x.data() + 2));
}

TEST(a_device_without_an_operation_refuses_what_needs_it_by_its_name) {
  CHECK(find_device("cpu").make(1)->operations().require<AltupPredict>() != nullptr);
  const OperationTable nothing;
  CHECK(nothing.find<AltupPredict>() == nullptr);
  std::string message;
  try {
    nothing.require<AltupPredict>();
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message.find("needs the operation altup_predict, which this device lacks") != std::string::npos);
}

}  // namespace turbomind::testing
