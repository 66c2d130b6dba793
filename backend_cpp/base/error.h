// Error type of the engine.
#pragma once

#include <stdexcept>
#include <string>

namespace turbomind {

enum class ErrorCode {
  kInvalidArgument,  // the caller's request or configuration is wrong
  kNotFound,         // something named does not exist
  kUnavailable,      // not now: overloaded or shutting down
  kInternal,         // a broken invariant or device fault
  kTimeout,          // not finished in the time the caller gave
  kUnknownSession,   // a session to continue in that does not exist
  kSessionBusy,      // a session that has a running request already
  kSessionIdle,      // a session to stop that has no running request
  kTooLong,          // more tokens than the session length
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

inline Error invalid_argument(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}
inline Error internal_error(const std::string& message) {
  return {ErrorCode::kInternal, message};
}

}  // namespace turbomind
