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
#include "triton/model_memory.h"

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
  explicit EngineMetrics(const MetricLabels& labels);
  // Those below are not thread-safe.
  //
  // Says whether the model is in memory.
  void publish(const ModelMemory::Report& report);
  // Adds the metrics of engines, all of which have the same configuration.
  void describe(const EngineConfig& config);
  void publish(const EngineStats& stats);
  // The engine has ended, and the next one begins to count from 0.
  void end_engine();
  // Counts a request that has ended. From any thread.
  void observe(const Output& last);

 private:
  using Read = std::function<double(const EngineStats&)>;
  using ReadModel = double (*)(const ModelMemory::Report&);

  struct Metric {
    MetricHandle metric;
    bool is_gauge;
    double published = 0;

    void publish(double value);
  };

  // The family, made when it is first asked for; null when the server runs with metrics off.
  TRITONSERVER_MetricFamily* family_of(const std::string& name, const char* description, TRITONSERVER_MetricKind kind);
  void add_seconds(std::vector<MetricHandle>& to, const std::string& family, const char* description,
                   std::span<const double> bounds, const Labels& labels);
  void add(const std::string& family, const char* description, bool is_gauge, const Labels& labels, Read read);
  // Null when the server runs with metrics off.
  MetricHandle make(const std::string& family, const char* description, bool is_gauge, const Labels& labels);

  const MetricLabels labels_;
  bool is_off_ = false;
  std::map<std::string, MetricFamilyHandle> families_;
  // Go before their families.
  std::vector<std::pair<Metric, ReadModel>> of_model_;
  std::vector<std::pair<Metric, Read>> of_engine_;
  // Histograms.
  std::vector<MetricHandle> queue_seconds_;
  std::vector<MetricHandle> grammar_seconds_;
};

}  // namespace turbomind
