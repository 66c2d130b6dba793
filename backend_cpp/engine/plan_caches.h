// The one plan of all that an engine's runners remember.
#pragma once

#include "model/model_runner.h"

namespace turbomind {

// `draft_runner`: null where no model drafts. Throws Error that names the group that cannot be.
CachePlan plan_caches(const ModelRunner& runner, const ModelRunner* draft_runner, const StepLimits& limits);

}  // namespace turbomind
