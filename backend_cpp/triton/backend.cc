// Entry points of the Triton backend. Each catches everything and hands on to ModelState.
#include <malloc.h>

#include <memory>

#include "triton/handles.h"
#include "triton/model_state.h"

using turbomind::check;
using turbomind::guarded;
using turbomind::ModelState;

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) {
  return guarded([] {
    uint32_t major = 0;
    uint32_t minor = 0;
    check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < 13) {
      throw turbomind::Error(turbomind::ErrorCode::kUnavailable,
                             "this backend needs Triton backend API 1.13 or later, the server has " +
                                 std::to_string(major) + "." + std::to_string(minor));
    }
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return guarded([model] {
    auto state = std::make_unique<ModelState>(model);
    check(TRITONBACKEND_ModelSetState(model, state.get()));
    state.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return guarded([model] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelState(model, &state));
    delete static_cast<ModelState*>(state);
    malloc_trim(0);  // the C library would keep the memory for this process
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([instance] {
    TRITONBACKEND_Model* model = nullptr;
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    check(TRITONBACKEND_ModelState(model, &state));
    check(TRITONBACKEND_ModelInstanceSetState(instance, state));
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*) {
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t request_count) {
  void* state = nullptr;
  if (TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceState(instance, &state)) return error;
  for (uint32_t i = 0; i < request_count; ++i) static_cast<ModelState*>(state)->execute(instance, requests[i]);
  return nullptr;
}

}  // extern "C"
