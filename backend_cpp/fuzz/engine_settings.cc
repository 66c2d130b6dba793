// Settings of an engine: refused, or within their ranges.
#include "engine/fields/engine_settings.h"

#include "engine/fields/limits.h"
#include "fuzz/fuzz.h"

namespace turbomind {

FUZZ_TARGET(engine_settings) {
  EngineSettings settings;
  if (!fuzz::is_accepted([&] { read_settings(Json::parse(input), settings); })) return;
  PROMISE(fuzz::is_accepted([&] {
    visit_settings(
        settings, [](const char* name, const auto& field, const Limits& limits) { check_limits(name, field, limits); });
  }));
}

}  // namespace turbomind
