// The engine's figures on Triton's metrics port (names: docs/interfaces.md).
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "triton/handles.h"

namespace turbomind {

class EngineMetrics {
 public:
  // Without effect when the server runs with metrics off.
  explicit EngineMetrics(const std::string& model_name);
  // Not thread-safe.
  void publish(const EngineStats& stats);

 private:
  struct Metric {
    MetricFamilyHandle family;
    MetricHandle metric;
    bool is_gauge;
    double (*read)(const EngineStats&);
    double published = 0;
  };

  std::vector<Metric> metrics_;
};

}  // namespace turbomind
