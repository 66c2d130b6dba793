// Triton's C handles with owners, and its errors as exceptions.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "triton/core/tritonbackend.h"

namespace turbomind {

// Throws Error(kInternal) when a call failed, and deletes the error.
inline void check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const std::string message = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  throw internal_error(message);
}

// For calls whose failure leaves nothing to do.
inline void ignore(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

inline void log_message(TRITONSERVER_LogLevel level, const std::string& message) {
  ignore(TRITONSERVER_LogMessage(level, "turbomind", 0, message.c_str()));
}

inline TRITONSERVER_Error_Code triton_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return TRITONSERVER_ERROR_INVALID_ARG;
    case ErrorCode::kNotFound:
      return TRITONSERVER_ERROR_NOT_FOUND;
    case ErrorCode::kUnavailable:
      return TRITONSERVER_ERROR_UNAVAILABLE;
    case ErrorCode::kInternal:
      return TRITONSERVER_ERROR_INTERNAL;
    case ErrorCode::kTimeout:
      return TRITONSERVER_ERROR_UNAVAILABLE;
    case ErrorCode::kUnknownSession:
      return TRITONSERVER_ERROR_NOT_FOUND;
    case ErrorCode::kSessionBusy:
    case ErrorCode::kSessionIdle:
    case ErrorCode::kTooLong:
      return TRITONSERVER_ERROR_INVALID_ARG;
  }
  return TRITONSERVER_ERROR_INTERNAL;
}

// Runs `body`; what it throws becomes the Triton error to return. No exception crosses the C ABI.
template <class Body>
TRITONSERVER_Error* guarded(Body&& body) {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return TRITONSERVER_ErrorNew(triton_code(error.code()), error.what());
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

struct FactoryDeleter {
  void operator()(TRITONBACKEND_ResponseFactory* factory) const {
    ignore(TRITONBACKEND_ResponseFactoryDelete(factory));
  }
};
using FactoryHandle = std::unique_ptr<TRITONBACKEND_ResponseFactory, FactoryDeleter>;

struct MessageDeleter {
  void operator()(TRITONSERVER_Message* message) const { ignore(TRITONSERVER_MessageDelete(message)); }
};
using MessageHandle = std::unique_ptr<TRITONSERVER_Message, MessageDeleter>;

struct MetricFamilyDeleter {
  void operator()(TRITONSERVER_MetricFamily* family) const { ignore(TRITONSERVER_MetricFamilyDelete(family)); }
};
using MetricFamilyHandle = std::unique_ptr<TRITONSERVER_MetricFamily, MetricFamilyDeleter>;

struct MetricDeleter {
  void operator()(TRITONSERVER_Metric* metric) const { ignore(TRITONSERVER_MetricDelete(metric)); }
};
struct MetricArgsDeleter {
  void operator()(TRITONSERVER_MetricArgs* args) const { ignore(TRITONSERVER_MetricArgsDelete(args)); }
};
using MetricArgsHandle = std::unique_ptr<TRITONSERVER_MetricArgs, MetricArgsDeleter>;
using MetricHandle = std::unique_ptr<TRITONSERVER_Metric, MetricDeleter>;

struct ParameterDeleter {
  void operator()(TRITONSERVER_Parameter* parameter) const { TRITONSERVER_ParameterDelete(parameter); }
};
using ParameterHandle = std::unique_ptr<TRITONSERVER_Parameter, ParameterDeleter>;

}  // namespace turbomind
