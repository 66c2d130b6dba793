// Common parts of users of cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace turbomind::cuda {

inline void check_status(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw internal_error(std::string(what) + ": cuBLASLt: " + cublasLtGetStatusString(status));
  }
}

// A descriptor of cuBLASLt, owned.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Product = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Matrix = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class Value>
void describe(const Product& product, cublasLtMatmulDescAttributes_t attribute, Value value) {
  check_status(cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof(value)), "describing a product");
}

template <class Value>
void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  check_status(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
               "stating what a product prefers");
}

}  // namespace turbomind::cuda
