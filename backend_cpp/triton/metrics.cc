#include "triton/metrics.h"

#include <utility>

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
struct MetricSpec {
  const char* name;
  const char* description;
  bool is_gauge;
  double (*read)(const EngineStats&);
};

// What is described in words of our own.
constexpr MetricSpec kOwn[] = {
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
    {"turbomind_prefix_cache_queries_total", "Tokens looked for in the cache", false,
     [](const EngineStats& s) { return double(s.prefix_cache_queries); }},
    {"turbomind_prefix_cache_hits_total", "Tokens found in the cache", false,
     [](const EngineStats& s) { return double(s.prefix_cache_hits); }},
    {"turbomind_evictions_total", "Idle blocks whose content was given up for space", false,
     [](const EngineStats& s) { return double(s.evictions); }},
    {"turbomind_host_blocks_total", "KV cache blocks in the host's memory", true,
     [](const EngineStats& s) { return double(s.host_blocks_total); }},
    {"turbomind_host_blocks_used", "KV cache blocks in the host's memory that hold something", true,
     [](const EngineStats& s) { return double(s.host_blocks_used); }},
    {"turbomind_swapped_out_total", "Blocks whose content went to the host's memory", false,
     [](const EngineStats& s) { return double(s.swapped_out); }},
    {"turbomind_swapped_in_total", "Blocks whose content came back from the host's memory", false,
     [](const EngineStats& s) { return double(s.swapped_in); }},
    {"turbomind_disk_bytes", "Bytes of the files in cache_dir", true,
     [](const EngineStats& s) { return double(s.disk.bytes); }},
    {"turbomind_disk_files", "Files in cache_dir that this engine knows of, a cache block each", true,
     [](const EngineStats& s) { return double(s.disk.files); }},
    {"turbomind_disk_blocks_written_total", "Cache blocks written to cache_dir", false,
     [](const EngineStats& s) { return double(s.disk.written); }},
    {"turbomind_disk_blocks_read_total", "Cache blocks read from cache_dir", false,
     [](const EngineStats& s) { return double(s.disk.read); }},
    {"turbomind_disk_damaged_total", "Files in cache_dir that were not what they should be, and were removed", false,
     [](const EngineStats& s) { return double(s.disk.damaged); }},
    {"turbomind_disk_failures_total", "Failures to write to cache_dir", false,
     [](const EngineStats& s) { return double(s.disk.failures); }},
    {"turbomind_first_tokens_total", "First tokens of responses", false,
     [](const EngineStats& s) { return double(s.first_tokens); }},
    {"turbomind_first_token_seconds_total", "Time from acceptance to first token, summed", false,
     [](const EngineStats& s) { return s.first_token_seconds; }},
    {"turbomind_later_tokens_total", "Tokens after a response's first", false,
     [](const EngineStats& s) { return double(s.later_tokens); }},
    {"turbomind_later_token_seconds_total", "Time between tokens of a response, summed", false,
     [](const EngineStats& s) { return s.later_token_seconds; }},
    {"turbomind_tokens_out_total", "Tokens generated", false,
     [](const EngineStats& s) { return double(s.tokens_out); }},
    {"turbomind_preemptions_total", "Sequences that gave up their blocks and began again", false,
     [](const EngineStats& s) { return double(s.preemptions); }},
    {"turbomind_kv_event_batches_total", "Batches of KV cache events, one a step", false,
     [](const EngineStats& s) { return double(s.event_batches); }},
    {"turbomind_kv_event_losses_total", "Times that KV cache events were lost, and everything was reported again",
     false, [](const EngineStats& s) { return double(s.event_losses); }},
    {"turbomind_grammar_requests_total", "Requests with a response format", false,
     [](const EngineStats& s) { return double(s.grammar_requests); }},
    {"turbomind_grammar_compilations_total", "Response formats compiled", false,
     [](const EngineStats& s) { return double(s.grammar_compilations); }},
    {"turbomind_grammar_hits_total", "Requests whose response format was compiled already, or for another", false,
     [](const EngineStats& s) { return double(s.grammar_hits); }},
    {"turbomind_grammar_failures_total", "Requests refused for their response format", false,
     [](const EngineStats& s) { return double(s.grammar_failures); }},
    {"turbomind_draft_spans_total", "Times that tokens were drafted for a response in a step", false,
     [](const EngineStats& s) { return double(s.speculation.spans); }},
    {"turbomind_draft_tokens_total", "Tokens that were drafted", false,
     [](const EngineStats& s) { return double(s.speculation.drafted); }},
    {"turbomind_draft_tokens_accepted_total", "Drafted tokens that were right", false,
     [](const EngineStats& s) { return double(s.speculation.accepted); }},
    {"turbomind_requests_admitted_total", "Requests that came into the batch", false,
     [](const EngineStats& s) { return double(s.admitted); }},
    {"turbomind_queue_seconds_total", "Time from acceptance into the batch, summed", false,
     [](const EngineStats& s) { return s.queue_seconds; }},
    {"turbomind_steps_total", "Engine steps", false, [](const EngineStats& s) { return double(s.steps); }},
    {"turbomind_step_seconds_total", "Time spent in steps", false, [](const EngineStats& s) { return s.step_seconds; }},
};

// The same under the names that vLLM gives them, which routers, autoscalers and dashboards ask for.
constexpr MetricSpec kVllm[] = {
    {"vllm:num_requests_running", "Requests in the batch", true,
     [](const EngineStats& s) { return double(s.running); }},
    {"vllm:num_requests_waiting", "Requests waiting for a place in the batch", true,
     [](const EngineStats& s) { return double(s.waiting); }},
    {"vllm:kv_cache_usage_perc", "Share of the KV cache that requests use, 0 to 1", true, cache_usage},
    {"vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc under its older name", true, cache_usage},
    {"vllm:prompt_tokens_total", "Prompt tokens accepted", false,
     [](const EngineStats& s) { return double(s.tokens_in); }},
    {"vllm:prompt_tokens_cached_total", "Tokens found in the cache", false,
     [](const EngineStats& s) { return double(s.prefix_cache_hits); }},
    {"vllm:generation_tokens_total", "Tokens generated", false,
     [](const EngineStats& s) { return double(s.tokens_out); }},
    {"vllm:num_preemptions_total", "Sequences that gave up their blocks and began again", false,
     [](const EngineStats& s) { return double(s.preemptions); }},
    {"vllm:prefix_cache_queries_total", "Tokens looked for in the cache", false,
     [](const EngineStats& s) { return double(s.prefix_cache_queries); }},
    {"vllm:prefix_cache_hits_total", "Tokens found in the cache", false,
     [](const EngineStats& s) { return double(s.prefix_cache_hits); }},
    {"vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total under its older name", false,
     [](const EngineStats& s) { return double(s.prefix_cache_queries); }},
    {"vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total under its older name", false,
     [](const EngineStats& s) { return double(s.prefix_cache_hits); }},
    {"vllm:spec_decode_num_drafts_total", "Times that tokens were drafted for a response in a step", false,
     [](const EngineStats& s) { return double(s.speculation.spans); }},
    {"vllm:spec_decode_num_draft_tokens_total", "Tokens that were drafted", false,
     [](const EngineStats& s) { return double(s.speculation.drafted); }},
    {"vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were right", false,
     [](const EngineStats& s) { return double(s.speculation.accepted); }},
    {"vllm:gpu_prefix_cache_hit_rate", "Share of the tokens looked for that were found", true, cache_hit_rate},
};

// And those of LMDeploy.
constexpr MetricSpec kLmdeploy[] = {
    {"lmdeploy:num_requests_running", "Requests in the batch", true,
     [](const EngineStats& s) { return double(s.running); }},
    {"lmdeploy:num_requests_waiting", "Requests waiting for a place in the batch", true,
     [](const EngineStats& s) { return double(s.waiting); }},
    {"lmdeploy:gpu_cache_usage_perc", "Share of the KV cache that requests use, 0 to 1", true, cache_usage},
    {"lmdeploy:prefix_cache_hit_rate", "Share of the tokens looked for that were found", true, cache_hit_rate},
    {"lmdeploy:prompt_tokens_total", "Prompt tokens accepted", false,
     [](const EngineStats& s) { return double(s.tokens_in); }},
    {"lmdeploy:generation_tokens_total", "Tokens generated", false,
     [](const EngineStats& s) { return double(s.tokens_out); }},
    {"lmdeploy:cached_tokens_total", "Tokens found in the cache", false,
     [](const EngineStats& s) { return double(s.prefix_cache_hits); }},
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

EngineMetrics::EngineMetrics(const MetricLabels& labels, const EngineConfig& config) {
  const Labels own = {{"model", labels.model}};
  for (const MetricSpec& one : kOwn) add(one.name, one.description, one.is_gauge, own, one.read);

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
    Labels place = served;
    place.emplace_back("position", std::to_string(i));
    add("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Drafted tokens that were right, by place in their draft",
        false, place,
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
  requests("max", [most = config.max_batch_size](const EngineStats&) { return double(most); });
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
  TRITONSERVER_MetricFamily* made =
      family_of(family, description, is_gauge ? TRITONSERVER_METRIC_KIND_GAUGE : TRITONSERVER_METRIC_KIND_COUNTER);
  if (made == nullptr) return;
  const Parameters parameters(labels);
  TRITONSERVER_Metric* metric = nullptr;
  check(TRITONSERVER_MetricNew(&metric, made, parameters.data(), parameters.size()));
  metrics_.push_back({MetricHandle(metric), is_gauge, std::move(read)});
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
