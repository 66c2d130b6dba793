// The engine's metrics on Triton's metrics port (names: docs/deployment/operations.md).
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "triton/handles.h"

namespace turbomind {

// Labels of one model's metrics.
struct MetricLabels {
  std::string model;    // in Triton
  std::string version;  // in Triton
  std::string served_name;
};

class EngineMetrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Without effect when the server runs with metrics off.
  EngineMetrics(const MetricLabels& labels, const EngineConfig& config);
  // Not thread-safe.
  void publish(const EngineStats& stats);
  // Counts a request that has ended. From any thread.
  void observe(const Output& last);

 private:
  using Read = std::function<double(const EngineStats&)>;

  struct Metric {
    MetricHandle metric;
    bool is_gauge;
    Read read;
    double published = 0;
  };

  // The family, made when it is first asked for; null when the server runs with metrics off.
  TRITONSERVER_MetricFamily* family_of(const std::string& name, const char* description, TRITONSERVER_MetricKind kind);
  void add_seconds(std::vector<MetricHandle>& to, const std::string& family, const char* description,
                   std::span<const double> bounds, const Labels& labels);
  void add(const std::string& family, const char* description, bool is_gauge, const Labels& labels, Read read);

  bool is_off_ = false;
  std::map<std::string, MetricFamilyHandle> families_;
  std::vector<Metric> metrics_;  // go before their families
  // Histograms.
  std::vector<MetricHandle> queue_seconds_;
  std::vector<MetricHandle> grammar_seconds_;
};

}  // namespace turbomind
