#include "triton/metrics.h"

namespace turbomind {

namespace {

struct Definition {
  const char* name;
  const char* description;
  bool is_gauge;
  double (*read)(const EngineStats&);
};

constexpr Definition kDefinitions[] = {
    {"turbomind_requests_running", "Requests in the batch", true,
     [](const EngineStats& s) { return double(s.running); }},
    {"turbomind_requests_waiting", "Requests waiting for a place in the batch", true,
     [](const EngineStats& s) { return double(s.waiting); }},
    {"turbomind_cache_blocks_total", "KV cache blocks", true,
     [](const EngineStats& s) { return double(s.blocks_total); }},
    {"turbomind_cache_blocks_used", "KV cache blocks in use", true,
     [](const EngineStats& s) { return double(s.blocks_used); }},
    {"turbomind_cache_blocks_free", "KV cache blocks free", true,
     [](const EngineStats& s) { return double(s.blocks_total - s.blocks_used - s.blocks_idle); }},
    {"turbomind_cache_blocks_idle", "KV cache blocks kept because their content may be used again", true,
     [](const EngineStats& s) { return double(s.blocks_idle); }},
    {"turbomind_sessions", "Conversations kept between requests", true,
     [](const EngineStats& s) { return double(s.sessions); }},
    {"turbomind_requests_completed_total", "Requests answered", false,
     [](const EngineStats& s) { return double(s.completed); }},
    {"turbomind_requests_cancelled_total", "Requests cancelled by their clients", false,
     [](const EngineStats& s) { return double(s.cancelled); }},
    {"turbomind_requests_failed_total", "Accepted requests that ended in an error", false,
     [](const EngineStats& s) { return double(s.failed); }},
    {"turbomind_tokens_in_total", "Prompt tokens accepted", false,
     [](const EngineStats& s) { return double(s.tokens_in); }},
    {"turbomind_tokens_computed_total", "Rows the model has run", false,
     [](const EngineStats& s) { return double(s.tokens_computed); }},
    {"turbomind_tokens_matched_total", "Prompt tokens taken from the cache", false,
     [](const EngineStats& s) { return double(s.tokens_matched); }},
    {"turbomind_evictions_total", "Idle blocks whose content was given up for space", false,
     [](const EngineStats& s) { return double(s.evictions); }},
    {"turbomind_first_tokens_total", "First tokens of answers", false,
     [](const EngineStats& s) { return double(s.first_tokens); }},
    {"turbomind_first_token_seconds_total", "Time from acceptance to first token, summed", false,
     [](const EngineStats& s) { return s.first_token_seconds; }},
    {"turbomind_later_tokens_total", "Tokens after an answer's first", false,
     [](const EngineStats& s) { return double(s.later_tokens); }},
    {"turbomind_later_token_seconds_total", "Time between tokens of an answer, summed", false,
     [](const EngineStats& s) { return s.later_token_seconds; }},
    {"turbomind_tokens_out_total", "Tokens generated", false,
     [](const EngineStats& s) { return double(s.tokens_out); }},
    {"turbomind_preemptions_total", "Sequences that gave up their blocks and were recomputed", false,
     [](const EngineStats& s) { return double(s.preemptions); }},
    {"turbomind_steps_total", "Engine steps", false, [](const EngineStats& s) { return double(s.steps); }},
    {"turbomind_step_seconds_total", "Time spent in steps", false, [](const EngineStats& s) { return s.step_seconds; }},
};

}  // namespace

EngineMetrics::EngineMetrics(const std::string& model_name) {
  const ParameterHandle label(TRITONSERVER_ParameterNew("model", TRITONSERVER_PARAMETER_STRING, model_name.c_str()));
  const TRITONSERVER_Parameter* labels[] = {label.get()};
  for (const Definition& definition : kDefinitions) {
    TRITONSERVER_MetricFamily* family = nullptr;
    TRITONSERVER_Metric* metric = nullptr;
    const auto kind = definition.is_gauge ? TRITONSERVER_METRIC_KIND_GAUGE : TRITONSERVER_METRIC_KIND_COUNTER;
    if (TRITONSERVER_Error* error =
            TRITONSERVER_MetricFamilyNew(&family, kind, definition.name, definition.description)) {
      log_message(TRITONSERVER_LOG_WARN, std::string("no engine metrics: ") + TRITONSERVER_ErrorMessage(error));
      ignore(error);
      return;
    }
    MetricFamilyHandle owned_family(family);
    check(TRITONSERVER_MetricNew(&metric, family, labels, 1));
    metrics_.push_back({std::move(owned_family), MetricHandle(metric), definition.is_gauge, definition.read});
  }
}

void EngineMetrics::publish(const EngineStats& stats) {
  for (Metric& metric : metrics_) {
    const double value = metric.read(stats);
    if (value == metric.published) continue;
    if (metric.is_gauge) {
      ignore(TRITONSERVER_MetricSet(metric.metric.get(), value));
    } else {
      ignore(TRITONSERVER_MetricIncrement(metric.metric.get(), value - metric.published));
    }
    metric.published = value;
  }
}

}  // namespace turbomind
