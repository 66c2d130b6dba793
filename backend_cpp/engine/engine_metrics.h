// Engine metrics, as Triton and lmdeploy.turbomind.engine report them.
#pragma once

#include "engine/stats.h"

namespace turbomind {

struct MetricSpec {
  const char* name;
  const char* description;
  bool is_gauge;
  double (*read)(const EngineStats&);
};

// The number at the end of a path of members.
template <auto... path>
double number_at(const EngineStats& stats) {
  return static_cast<double>((stats.*....*path));
}

inline constexpr MetricSpec kEngineMetrics[] = {
    {"turbomind_requests_running", "Requests in the batch", true, number_at<&EngineStats::running>},
    {"turbomind_requests_waiting", "Requests waiting for a place in the batch", true, number_at<&EngineStats::waiting>},
    {"turbomind_cache_blocks_total", "KV cache blocks", true, number_at<&EngineStats::blocks_total>},
    {"turbomind_cache_blocks_used", "KV cache blocks in use", true, number_at<&EngineStats::blocks_used>},
    {"turbomind_cache_blocks_free", "KV cache blocks free", true,
     [](const EngineStats& s) { return double(s.blocks_total - s.blocks_used - s.blocks_idle); }},
    {"turbomind_cache_blocks_idle", "KV cache blocks kept because their content may be used again", true,
     number_at<&EngineStats::blocks_idle>},
    {"turbomind_sessions", "Conversations kept between requests", true, number_at<&EngineStats::sessions>},
    {"turbomind_requests_completed_total", "Requests answered", false, number_at<&EngineStats::completed>},
    {"turbomind_requests_cancelled_total", "Requests cancelled by their clients", false,
     number_at<&EngineStats::cancelled>},
    {"turbomind_requests_failed_total", "Accepted requests that ended in an error", false,
     number_at<&EngineStats::failed>},
    {"turbomind_tokens_in_total", "Prompt tokens accepted", false, number_at<&EngineStats::tokens_in>},
    {"turbomind_tokens_computed_total", "Rows the model has run", false, number_at<&EngineStats::tokens_computed>},
    {"turbomind_prefix_cache_queries_total", "Tokens looked for in the cache", false,
     number_at<&EngineStats::prefix_cache_queries>},
    {"turbomind_prefix_cache_hits_total", "Tokens found in the cache", false,
     number_at<&EngineStats::prefix_cache_hits>},
    {"turbomind_evictions_total", "Idle blocks whose content was given up for space", false,
     number_at<&EngineStats::evictions>},
    {"turbomind_host_blocks_total", "KV cache blocks in the host's memory", true,
     number_at<&EngineStats::host_blocks_total>},
    {"turbomind_host_blocks_used", "KV cache blocks in the host's memory that hold something", true,
     number_at<&EngineStats::host_blocks_used>},
    {"turbomind_swapped_out_total", "Blocks whose content went to the host's memory", false,
     number_at<&EngineStats::swapped_out>},
    {"turbomind_swapped_in_total", "Blocks whose content came back from the host's memory", false,
     number_at<&EngineStats::swapped_in>},
    {"turbomind_disk_bytes", "Bytes of the files in cache_dir", true, number_at<&EngineStats::disk, &DiskStats::bytes>},
    {"turbomind_disk_files", "Files in cache_dir that this engine knows of, a cache block each", true,
     number_at<&EngineStats::disk, &DiskStats::files>},
    {"turbomind_disk_blocks_written_total", "Cache blocks written to cache_dir", false,
     number_at<&EngineStats::disk, &DiskStats::written>},
    {"turbomind_disk_blocks_read_total", "Cache blocks read from cache_dir", false,
     number_at<&EngineStats::disk, &DiskStats::read>},
    {"turbomind_disk_damaged_total", "Files in cache_dir that were not what they should be, and were removed", false,
     number_at<&EngineStats::disk, &DiskStats::damaged>},
    {"turbomind_disk_failures_total", "Failures to write to cache_dir", false,
     number_at<&EngineStats::disk, &DiskStats::failures>},
    {"turbomind_first_tokens_total", "First tokens of responses", false, number_at<&EngineStats::first_tokens>},
    {"turbomind_first_token_seconds_total", "Time from acceptance to first token, summed", false,
     number_at<&EngineStats::first_token_seconds>},
    {"turbomind_later_tokens_total", "Tokens after a response's first", false, number_at<&EngineStats::later_tokens>},
    {"turbomind_later_token_seconds_total", "Time between tokens of a response, summed", false,
     number_at<&EngineStats::later_token_seconds>},
    {"turbomind_tokens_out_total", "Tokens generated", false, number_at<&EngineStats::tokens_out>},
    {"turbomind_preemptions_total", "Sequences that gave up their blocks and began again", false,
     number_at<&EngineStats::preemptions>},
    {"turbomind_kv_event_batches_total", "Batches of KV cache events, one a step", false,
     number_at<&EngineStats::event_batches>},
    {"turbomind_kv_event_losses_total", "Times that KV cache events were lost, and everything was reported again",
     false, number_at<&EngineStats::event_losses>},
    {"turbomind_grammar_requests_total", "Requests with a response format", false,
     number_at<&EngineStats::grammar, &GrammarCounts::requests>},
    {"turbomind_grammar_compilations_total", "Response formats compiled", false,
     number_at<&EngineStats::grammar, &GrammarCounts::compilations>},
    {"turbomind_grammar_hits_total", "Requests whose response format was compiled already, or for another", false,
     number_at<&EngineStats::grammar, &GrammarCounts::hits>},
    {"turbomind_grammar_failures_total", "Requests refused for their response format", false,
     number_at<&EngineStats::grammar, &GrammarCounts::failures>},
    {"turbomind_draft_spans_total", "Times that tokens were drafted for a response in a step", false,
     number_at<&EngineStats::speculation, &SpeculationStats::spans>},
    {"turbomind_draft_tokens_total", "Tokens that were drafted", false,
     number_at<&EngineStats::speculation, &SpeculationStats::drafted>},
    {"turbomind_draft_tokens_accepted_total", "Drafted tokens that were right", false,
     number_at<&EngineStats::speculation, &SpeculationStats::accepted>},
    {"turbomind_requests_admitted_total", "Requests that came into the batch", false,
     number_at<&EngineStats::admitted>},
    {"turbomind_queue_seconds_total", "Time from acceptance into the batch, summed", false,
     number_at<&EngineStats::queue_seconds>},
    {"turbomind_steps_total", "Engine steps", false, number_at<&EngineStats::steps>},
    {"turbomind_step_seconds_total", "Time spent in steps", false, number_at<&EngineStats::step_seconds>},
};

}  // namespace turbomind
