// Resolution of user settings: pure functions of settings, model and device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/engine_config.h"
#include "engine/fields/engine_settings.h"
#include "kernels/paged_attention.h"
#include "model/spec/model_spec.h"
#include "weights/weight_reader.h"

namespace turbomind {

// How matrices and the cache are kept.
struct Storage {
  WeightOptions weights;
  CacheType cache = CacheType::kFloat32;
};

// All that is decided before a model is loaded.
struct ResolvedEngine {
  EngineSettings settings;  // those that hold for the model
  ModelSpec spec;           // positions stretched as the settings say
  DeviceTraits device;
  bool has_worker = false;        // workers run the model
  EngineConfig config;            // without what depends on runners: plan, pages, fingerprint
  bool publishes_events = false;  // KV events
  Storage storage;
  int max_tokens = 0;              // of a step
  std::vector<std::string> notes;  // sentences about settings that were not taken as they are
};

// Each throws Error(kInvalidArgument) that names the setting, what was expected and what was given.

ResolvedEngine resolve(const EngineSettings& settings, ModelSpec spec, const DeviceTraits& device, bool has_worker);

// A model that drafts for another: its own description, stretched likewise, and how it is kept.
struct ResolvedDrafter {
  ModelSpec spec;
  Storage storage;
};
ResolvedDrafter resolve_drafter(const ResolvedEngine& target, ModelSpec spec, bool has_worker);

// Sizes a cache by config.plan: pages for a rank that has so many bytes free.
int cache_page_count(const ResolvedEngine& engine, size_t free_bytes);
// Pages of its second tier, for a host that has so many.
int host_page_count(const ResolvedEngine& engine, size_t free_bytes);

}  // namespace turbomind
