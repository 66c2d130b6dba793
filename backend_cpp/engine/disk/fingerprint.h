// What keys, values and states depend on besides tokens, in a form that other processes and machines have too.
#pragma once

#include <string>

#include "engine/fields/engine_settings.h"
#include "model/cache_plan.h"

namespace turbomind {

// Of an engine directory whose model runs on a device with these settings, and of what its cache looks like. Reads all
// weights. Files and directories may be called anything.
std::string cache_fingerprint(const std::string& directory, const EngineSettings& settings, const std::string& device,
                              const CachePlan& plan);

}  // namespace turbomind
