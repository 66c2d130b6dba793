#include "triton/metrics.h"

#include <utility>

#include "engine/engine_metrics.h"

namespace turbomind {

namespace {

using Labels = EngineMetrics::Labels;

double cache_usage(const EngineStats& stats) {
  return stats.blocks_total > 0 ? double(stats.blocks_used) / double(stats.blocks_total) : 0.0;
}

double cache_hit_rate(const EngineStats& stats) {
  return stats.prefix_cache_queries > 0 ? double(stats.prefix_cache_hits) / double(stats.prefix_cache_queries) : 0.0;
}

// One number of the engine's.
// Under the names that vLLM gives them, which routers, autoscalers and dashboards ask for.
constexpr MetricSpec kVllm[] = {
    {"vllm:num_requests_running", "Requests in the batch", true, number_at<&EngineStats::running>},
    {"vllm:num_requests_waiting", "Requests waiting for a place in the batch", true, number_at<&EngineStats::waiting>},
    {"vllm:kv_cache_usage_perc", "Share of the KV cache that requests use, 0 to 1", true, cache_usage},
    {"vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc under its older name", true, cache_usage},
    {"vllm:prompt_tokens_total", "Prompt tokens accepted", false, number_at<&EngineStats::tokens_in>},
    {"vllm:prompt_tokens_cached_total", "Tokens found in the cache", false, number_at<&EngineStats::prefix_cache_hits>},
    {"vllm:generation_tokens_total", "Tokens generated", false, number_at<&EngineStats::tokens_out>},
    {"vllm:num_preemptions_total", "Sequences that gave up their blocks and began again", false,
     number_at<&EngineStats::preemptions>},
    {"vllm:prefix_cache_queries_total", "Tokens looked for in the cache", false,
     number_at<&EngineStats::prefix_cache_queries>},
    {"vllm:prefix_cache_hits_total", "Tokens found in the cache", false, number_at<&EngineStats::prefix_cache_hits>},
    {"vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total under its older name", false,
     number_at<&EngineStats::prefix_cache_queries>},
    {"vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total under its older name", false,
     number_at<&EngineStats::prefix_cache_hits>},
    {"vllm:spec_decode_num_drafts_total", "Times that tokens were drafted for a response in a step", false,
     number_at<&EngineStats::speculation, &SpeculationStats::spans>},
    {"vllm:spec_decode_num_draft_tokens_total", "Tokens that were drafted", false,
     number_at<&EngineStats::speculation, &SpeculationStats::drafted>},
    {"vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were right", false,
     number_at<&EngineStats::speculation, &SpeculationStats::accepted>},
    {"vllm:gpu_prefix_cache_hit_rate", "Share of the tokens looked for that were found", true, cache_hit_rate},
};

// And those of LMDeploy.
constexpr MetricSpec kLmdeploy[] = {
    {"lmdeploy:num_requests_running", "Requests in the batch", true, number_at<&EngineStats::running>},
    {"lmdeploy:num_requests_waiting", "Requests waiting for a place in the batch", true,
     number_at<&EngineStats::waiting>},
    {"lmdeploy:gpu_cache_usage_perc", "Share of the KV cache that requests use, 0 to 1", true, cache_usage},
    {"lmdeploy:prefix_cache_hit_rate", "Share of the tokens looked for that were found", true, cache_hit_rate},
    {"lmdeploy:prompt_tokens_total", "Prompt tokens accepted", false, number_at<&EngineStats::tokens_in>},
    {"lmdeploy:generation_tokens_total", "Tokens generated", false, number_at<&EngineStats::tokens_out>},
    {"lmdeploy:cached_tokens_total", "Tokens found in the cache", false, number_at<&EngineStats::prefix_cache_hits>},
};

// And under the names of Triton's backend for TensorRT-LLM: one family, a series a kind.
constexpr const char* kTrtRequests = "nv_trt_llm_request_metrics";
constexpr const char* kTrtBlocks = "nv_trt_llm_kv_cache_block_metrics";

// Upper bounds in seconds; vLLM's begin at 0.3, where most requests of a server that keeps up have long begun.
constexpr double kQueueBounds[] = {0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5,  5,
                                   10,    15,    20,   30,   40,  50,  60,  120, 240, 480, 960, 1920, 7680};

constexpr double kGrammarBounds[] = {0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};

// Labels as Triton takes them.
class Parameters {
 public:
  explicit Parameters(const Labels& labels) {
    for (const auto& [key, value] : labels) {
      owned_.emplace_back(TRITONSERVER_ParameterNew(key.c_str(), TRITONSERVER_PARAMETER_STRING, value.c_str()));
      seen_.push_back(owned_.back().get());
    }
  }
  const TRITONSERVER_Parameter** data() const { return const_cast<const TRITONSERVER_Parameter**>(seen_.data()); }
  size_t size() const { return seen_.size(); }

 private:
  std::vector<ParameterHandle> owned_;
  std::vector<const TRITONSERVER_Parameter*> seen_;
};

}  // namespace

EngineMetrics::EngineMetrics(const MetricLabels& labels) : labels_(labels) {
  const Labels own = {{"model", labels.model}};
  const auto add_one = [&](const char* family, const char* description, bool is_gauge, ReadModel read) {
    if (MetricHandle metric = make(family, description, is_gauge, own)) {
      of_model_.emplace_back(Metric{std::move(metric), is_gauge}, read);
    }
  };
  using Report = ModelMemory::Report;
  add_one("turbomind_model_awake", "Whether the model is in memory and takes requests", true,
          [](const Report& r) { return r.state == Report::State::kAwake ? 1.0 : 0.0; });
  add_one("turbomind_model_memory_bytes", "Bytes of weights and KV cache that the model holds", true,
          [](const Report& r) { return double(r.bytes); });
  add_one("turbomind_model_waiting_requests", "Requests that wait until the model is in memory", true,
          [](const Report& r) { return double(r.waiting); });
  add_one("turbomind_model_wakes_total", "Times that the model was woken", false,
          [](const Report& r) { return double(r.wakes); });
}

void EngineMetrics::describe(const EngineConfig& config) {
  const MetricLabels& labels = labels_;
  const Labels own = {{"model", labels.model}};
  for (const MetricSpec& one : kEngineMetrics) add(one.name, one.description, one.is_gauge, own, one.read);

  const Labels served = {{"model_name", labels.served_name}, {"engine", "0"}};
  for (const MetricSpec& one : kVllm) add(one.name, one.description, one.is_gauge, served, one.read);
  for (const MetricSpec& one : kLmdeploy) add(one.name, one.description, one.is_gauge, served, one.read);
  const char* queue = "Time of a request from acceptance into the batch";
  add_seconds(queue_seconds_, "turbomind_request_queue_seconds", queue, kQueueBounds, own);
  for (const char* name : {"vllm:request_queue_time_seconds", "lmdeploy:request_queue_time_seconds"}) {
    add_seconds(queue_seconds_, name, queue, kQueueBounds, served);
  }
  add_seconds(grammar_seconds_, "turbomind_request_grammar_seconds",
              "Time of a request with a response format until that was compiled", kGrammarBounds, own);
  for (int i = 0; i < config.speculation.num_speculative_tokens; ++i) {
    Labels positioned = served;
    positioned.emplace_back("position", std::to_string(i));
    add("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Drafted tokens that were right, by place in their draft",
        false, positioned,
        [at = static_cast<size_t>(i)](const EngineStats& s) { return double(s.speculation.accepted_at[at]); });
  }
  Labels cache = served;
  cache.emplace_back("block_size", std::to_string(config.block_len));
  cache.emplace_back("num_gpu_blocks", std::to_string(config.page_count));
  cache.emplace_back("num_cpu_blocks", std::to_string(config.host_page_count));
  add("vllm:cache_config_info", "How the KV cache is divided", true, cache, [](const EngineStats&) { return 1.0; });

  const auto add_kind = [&](const char* family, const char* description, const char* key, const char* kind, Read read) {
    add(family, description, true, {{"model", labels.model}, {"version", labels.version}, {key, kind}},
        std::move(read));
  };
  const auto requests = [&](const char* kind, Read read) {
    add_kind(kTrtRequests, "Requests, by where they are", "request_type", kind, std::move(read));
  };
  requests("waiting", [](const EngineStats& s) { return double(s.waiting); });
  requests("scheduled", [](const EngineStats& s) { return double(s.running); });
  requests("active", [](const EngineStats& s) { return double(s.running + s.waiting); });
  requests("max", [max_batch = config.max_batch_size](const EngineStats&) { return double(max_batch); });
  const auto blocks = [&](const char* kind, Read read) {
    add_kind(kTrtBlocks, "Blocks of the KV cache; fraction: the share in use", "kv_cache_block_type", kind,
             std::move(read));
  };
  blocks("max", [](const EngineStats& s) { return double(s.blocks_total); });
  blocks("used", [](const EngineStats& s) { return double(s.blocks_used); });
  blocks("free", [](const EngineStats& s) { return double(s.blocks_total - s.blocks_used); });
  blocks("fraction", cache_usage);
  blocks("tokens_per", [tokens = config.block_len](const EngineStats&) { return double(tokens); });
}

void EngineMetrics::add(const std::string& family, const char* description, bool is_gauge, const Labels& labels,
                        Read read) {
  if (MetricHandle metric = make(family, description, is_gauge, labels)) {
    of_engine_.emplace_back(Metric{std::move(metric), is_gauge}, std::move(read));
  }
}

MetricHandle EngineMetrics::make(const std::string& family, const char* description, bool is_gauge,
                                 const Labels& labels) {
  TRITONSERVER_MetricFamily* made =
      family_of(family, description, is_gauge ? TRITONSERVER_METRIC_KIND_GAUGE : TRITONSERVER_METRIC_KIND_COUNTER);
  if (made == nullptr) return nullptr;
  const Parameters parameters(labels);
  TRITONSERVER_Metric* metric = nullptr;
  check(TRITONSERVER_MetricNew(&metric, made, parameters.data(), parameters.size()));
  return MetricHandle(metric);
}

void EngineMetrics::add_seconds(std::vector<MetricHandle>& to, const std::string& family, const char* description,
                                std::span<const double> bounds, const Labels& labels) {
  TRITONSERVER_MetricFamily* made = family_of(family, description, TRITONSERVER_METRIC_KIND_HISTOGRAM);
  if (made == nullptr) return;
  TRITONSERVER_MetricArgs* args = nullptr;
  check(TRITONSERVER_MetricArgsNew(&args));
  const MetricArgsHandle owned(args);
  check(TRITONSERVER_MetricArgsSetHistogram(args, bounds.data(), bounds.size()));
  const Parameters parameters(labels);
  TRITONSERVER_Metric* metric = nullptr;
  check(TRITONSERVER_MetricNewWithArgs(&metric, made, parameters.data(), parameters.size(), args));
  to.emplace_back(metric);
}

TRITONSERVER_MetricFamily* EngineMetrics::family_of(const std::string& name, const char* description,
                                                    TRITONSERVER_MetricKind kind) {
  if (is_off_) return nullptr;
  auto& owned = families_[name];
  if (owned == nullptr) {
    TRITONSERVER_MetricFamily* made = nullptr;
    if (TRITONSERVER_Error* error = TRITONSERVER_MetricFamilyNew(&made, kind, name.c_str(), description)) {
      log_message(TRITONSERVER_LOG_WARN, std::string("no engine metrics: ") + TRITONSERVER_ErrorMessage(error));
      ignore(error);
      is_off_ = true;
      return nullptr;
    }
    owned.reset(made);
  }
  return owned.get();
}

void EngineMetrics::observe(const Output& last) {
  const auto add = [](const std::vector<MetricHandle>& to, float seconds) {
    if (seconds < 0) return;
    for (const MetricHandle& metric : to) ignore(TRITONSERVER_MetricObserve(metric.get(), seconds));
  };
  add(queue_seconds_, last.times.queue);
  add(grammar_seconds_, last.times.grammar);
}

void EngineMetrics::publish(const ModelMemory::Report& report) {
  for (auto& [metric, read] : of_model_) metric.publish(read(report));
}

void EngineMetrics::publish(const EngineStats& stats) {
  for (auto& [metric, read] : of_engine_) metric.publish(read(stats));
}

void EngineMetrics::end_engine() {
  for (auto& [metric, read] : of_engine_) {
    if (!metric.is_gauge) metric.published = 0;
  }
  publish(EngineStats());
}

void EngineMetrics::Metric::publish(double value) {
  if (value == published) return;
  if (is_gauge) {
    ignore(TRITONSERVER_MetricSet(metric.get(), value));
  } else {
    ignore(TRITONSERVER_MetricIncrement(metric.get(), value - published));
  }
  published = value;
}

}  // namespace turbomind
