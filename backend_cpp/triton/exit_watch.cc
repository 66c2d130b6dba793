#include "triton/exit_watch.h"

#include "triton/handles.h"

namespace turbomind {

ExitWatch::ExitWatch(TRITONBACKEND_Model* model, const Grace& grace) : grace_(grace) {
  check(TRITONBACKEND_ModelServer(model, &server_));
  const char* name = nullptr;
  uint64_t version = 0;
  check(TRITONBACKEND_ModelName(model, &name));
  check(TRITONBACKEND_ModelVersion(model, &version));
  model_ = name;
  version_ = static_cast<int64_t>(version);
}

ExitWatch::End ExitWatch::time_up() {
  const Clock::time_point now = Clock::now();
  if (!stop_reported_ && is_server_stopping()) stop_reported_ = now;
  if (stop_reported_) return now - *stop_reported_ >= grace_.drain ? End::kServerStops : End::kNotYet;
  if (!grace_.unload) return End::kNotYet;
  if (!unload_reported_ && is_unloading()) unload_reported_ = now;
  return unload_reported_ && now - *unload_reported_ >= *grace_.unload ? End::kModelUnloads : End::kNotYet;
}

bool ExitWatch::is_server_stopping() const {
  bool is_live = true;
  TRITONSERVER_Error* exiting = TRITONSERVER_ServerIsLive(server_, &is_live);
  if (exiting == nullptr) return false;  // a server that still starts is not live, but no error either
  TRITONSERVER_ErrorDelete(exiting);
  return true;
}

bool ExitWatch::is_unloading() const {
  bool is_ready = false;
  ignore(TRITONSERVER_ServerModelIsReady(server_, model_.c_str(), version_, &is_ready));
  return !is_ready;
}

}  // namespace turbomind
