// The settings of an engine, read from JSON.
#pragma once

#include "base/json.h"
#include "engine/fields/engine_settings_fields.h"

namespace turbomind {

// Puts what `given`, an object of settings, says into `settings`; null, like what is not there, says nothing. Throws
// Error(kInvalidArgument) for an unknown key, a wrong type or a value out of range, naming the key.
void read_settings(const Json& given, EngineSettings& settings);

}  // namespace turbomind
