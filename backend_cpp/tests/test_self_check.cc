// Tables of kernels are distinguished by what they compute.
#include "kernels/cpu/isa.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

// A table whose sums with packed weights are off in one place.
void wrong_block(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows, int first_tile,
                 int last_tile, float* y, bool accumulate) {
  kernels().packed_block(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  y[17] += 1e-3f;
}

}  // namespace

TEST(a_table_has_its_own_products_and_a_wrong_one_is_noticed) {
  const std::string before = kernels().name;
  for (const std::string& isa : supported_isas()) {
    select_isa(isa);
    CHECK(has_same_gemms(kernels(), kernels()));
    KernelTable wrong = kernels();
    wrong.packed_block = wrong_block;
    CHECK(!has_same_gemms(wrong, kernels()));
  }
  select_isa(before);
}

}  // namespace turbomind::testing
