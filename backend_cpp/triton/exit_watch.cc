#include "triton/exit_watch.h"

#include "triton/handles.h"

namespace turbomind {

ExitWatch::ExitWatch(TRITONBACKEND_Model* model, std::chrono::duration<double> drain) : drain_(drain) {
  check(TRITONBACKEND_ModelServer(model, &server_));
}

bool ExitWatch::is_time_up() {
  if (!told_) {
    bool is_live = true;
    TRITONSERVER_Error* exiting = TRITONSERVER_ServerIsLive(server_, &is_live);
    if (exiting == nullptr) return false;  // a server that still starts is not live, but no error either
    TRITONSERVER_ErrorDelete(exiting);
    told_ = Clock::now();
  }
  return Clock::now() - *told_ >= drain_;
}

}  // namespace turbomind
