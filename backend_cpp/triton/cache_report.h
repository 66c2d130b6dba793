// What the cache holds, by tier, as JSON.
#pragma once

#include <string>

#include "engine/control/cache_control.h"

namespace turbomind {

std::string as_json(const CacheReport& report);

}  // namespace turbomind
