// Configuration of speculative decoding.
#pragma once

#include <string>

#include "base/json.h"

namespace turbomind {

inline constexpr int kMaxDrafts = 32;  // of a sequence in a step

struct SpeculativeConfig {
  int num_speculative_tokens = 0;  // of a sequence in a step, at most kMaxDrafts; 0: nothing is drafted
  bool is_adaptive = true;         // fewer are drafted where they do not pay
  // Texts that repeat are found by this many tokens at least, and compared as far as this many.
  int prompt_lookup_min = 1;
  int prompt_lookup_max = 32;
  int shared_tokens = 0;  // of recent responses, in which other requests look too
  // A model that drafts where nothing repeats.
  bool has_model = false;
  std::string model;     // its engine directory, or what lmdeploy.turbomind.engine_dir finds; empty: the model itself
  std::string method;    // as the setting has it
  bool is_head = false;  // of the engine's model; `model` is then what lmdeploy.turbomind.heads made or is to make
  int weight_bits = 0;   // as the setting of an engine

  bool is_on() const { return num_speculative_tokens > 0; }
  // Of the setting speculative_config, whose fields lmdeploy/speculative.py lists; null or "none": nothing is
  // drafted; "auto": that depends on `is_automatic`. Throws Error(kInvalidArgument).
  static SpeculativeConfig of(const Json& setting, bool is_automatic);
};

}  // namespace turbomind
