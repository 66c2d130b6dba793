// How a model is run: the fields of TurbomindEngineConfig and of WorkerSettings.
// Written by `make fields` from lmdeploy/messages.py and lmdeploy/pytorch/settings.py; change that.
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "engine/fields/limits.h"

namespace turbomind {

struct EngineSettings {
  // Type of weights and activations; auto: the checkpoint's.
  std::string dtype = "auto";
  // Quantize the weights to this many bits while loading: faster, slightly less accurate. Weights that are
  // quantized in the checkpoint are not changed.
  int weight_bits = 0;
  // Checkpoint format; default: detected. A given format must match the checkpoint.
  std::string model_format;
  // Tensor parallelism: number of GPUs, or of groups of CPU cores, that share the model. Must divide the number of
  // attention heads.
  int tp = 1;
  // Maximum context length, prompt and response together; default: the model's, limited by the size of the cache.
  int session_len = 0;
  // Maximum number of sequences per step; default: 64 on a CPU, 256 on a GPU.
  int max_batch_size = 0;
  // Share of free memory for the KV cache; values of 1 or more are a number of blocks. On a CPU the default is
  // limited to 4 GiB.
  double cache_max_entry_count = 0.8;
  // Number of blocks that the cache grows by; -1: all at once.
  int cache_chunk_size = -1;
  // Tokens per block of the KV cache.
  int cache_block_seq_len = 64;
  // Number of additional KV cache blocks in host memory: blocks evicted from the device are swapped there, and
  // copied back instead of recomputed; 0: none.
  int num_cpu_blocks = 0;
  // Directory for KV cache blocks, owned by this user: blocks of prompts and responses are stored there, and reused
  // after a restart and by other servers with the same directory. Requires enable_prefix_caching.
  std::string cache_dir;
  // Maximum size of cache_dir; the least recently used blocks are removed.
  double cache_dir_bytes = 10000000000.0;
  // Prompt tokens between snapshots of the states of recurrent layers, which prefix caching resumes from; 0:
  // snapshots only at the ends of prompts and responses and where prompts diverge.
  int state_snapshot_interval = 512;
  // Automatic prefix caching: reuse the KV cache of common prompt prefixes.
  bool enable_prefix_caching = true;
  // Publish KV cache events over ZMQ, in vLLM's format, for prefix-aware routers: a JSON object with
  // "enable_kv_cache_events": true and the options in docs/deployment/operations.md. Requires
  // enable_prefix_caching.
  Json kv_events_config;
  // Speculative decoding, which drafts tokens and verifies several per step with the same output: a JSON object
  // with the options in docs/guides/speculative-decoding.md, such as {"method": "ngram"}; auto: that on CPUs, where
  // it is faster; none: disabled.
  Json speculative_config = Json::parse(R"("auto")");
  // Bits per element of the KV cache; 0: not quantized.
  int quant_policy = 0;
  // Factor of dynamic NTK scaling beyond the trained length; 0: the model's.
  double rope_scaling_factor = 0.0;
  // Scale attention logits by the logarithm of the position.
  bool use_logn_attn = false;
  // Download directory for models of a hub.
  std::string download_dir;
  // Revision of a model of a hub: branch, tag or commit.
  std::string revision;
  // Maximum number of prompt tokens per step (chunked prefill). On a CPU the default is limited to 256, so that
  // running responses are not delayed.
  int max_prefill_token_num = 8192;
  // Token budget per step, for prefill and decode together; 0: max_prefill_token_num.
  int num_tokens_per_iter = 0;
  // Maximum number of steps for a prompt, which raises the token budget of long prompts; 1: unlimited.
  int max_prefill_iters = 1;
  // Device; auto: a GPU if the build supports it and one is present, else the CPU.
  std::string device = "auto";
  // Number of compute threads on the CPU; 0: one per core available to the process.
  int threads = 0;
  // Maximum number of waiting requests; further ones are refused as overloaded.
  int max_waiting = 4096;
  // Maximum MiB of image embeddings of all open requests and sessions; a request over the limit is refused as
  // overloaded.
  int max_embedding_mib = 1024;
  // LoRA adapters, path by name. More can be loaded at run time.
  std::map<std::string, std::string> adapters;
  // Maximum MiB of LoRA adapters in memory. The least recently used ones are evicted.
  int max_adapter_mib = 1024;
  // Maximum CPU seconds to compile a response format; a format over the limit is refused.
  double grammar_compile_seconds = 10.0;
  // Idle time after which a session is deleted.
  int session_idle_seconds = 3600;
  // Maximum seconds per step. After that the engine is considered hung: it reports not ready, and the server
  // restarts.
  int step_timeout = 300;
  // Run a model's modules as they are, without captured graphs.
  bool eager_mode = false;
  // Classes that run a model in place of those known: a Python file, or a JSON object of name to class.
  std::string custom_module_map;
  // A step of the PyTorch engine that takes longer counts as lost, and its processes are started again.
  double worker_step_seconds = 600.0;
};

// Calls visit(name, field, limits) for every setting.
template <class Settings, class Visit>
void visit_settings(Settings& settings, Visit&& visit) {
  visit("dtype", settings.dtype, Limits{.choices = "auto, float32, float16, bfloat16"});
  visit("weight_bits", settings.weight_bits, Limits{.none = 0, .choices = "4, 8"});
  visit("model_format", settings.model_format,
        Limits{
            .choices =
                "hf, meta_llama, awq, gptq, fp8, fbgemm_fp8, compressed-tensors, modelopt, quark, smooth_quant, gguf"});
  visit("tp", settings.tp, Limits{.low = 1});
  visit("session_len", settings.session_len, Limits{.low = 2, .none = 0});
  visit("max_batch_size", settings.max_batch_size, Limits{.low = 1, .none = 0});
  visit("cache_max_entry_count", settings.cache_max_entry_count, Limits{.low = 0, .excludes_low = true, .high = 1e+09});
  visit("cache_chunk_size", settings.cache_chunk_size, Limits{.low = -1});
  visit("cache_block_seq_len", settings.cache_block_seq_len, Limits{.choices = "16, 32, 64, 128, 256, 512"});
  visit("num_cpu_blocks", settings.num_cpu_blocks, Limits{.low = 0});
  visit("cache_dir", settings.cache_dir, Limits{});
  visit("cache_dir_bytes", settings.cache_dir_bytes, Limits{.low = 0, .high = 1e+15});
  visit("state_snapshot_interval", settings.state_snapshot_interval, Limits{.low = 0, .high = 1e+06});
  visit("enable_prefix_caching", settings.enable_prefix_caching, Limits{});
  visit("kv_events_config", settings.kv_events_config, Limits{});
  visit("speculative_config", settings.speculative_config, Limits{});
  visit("quant_policy", settings.quant_policy, Limits{.choices = "0, 4, 8"});
  visit("rope_scaling_factor", settings.rope_scaling_factor, Limits{.low = 0});
  visit("use_logn_attn", settings.use_logn_attn, Limits{});
  visit("download_dir", settings.download_dir, Limits{});
  visit("revision", settings.revision, Limits{});
  visit("max_prefill_token_num", settings.max_prefill_token_num, Limits{.low = 1});
  visit("num_tokens_per_iter", settings.num_tokens_per_iter, Limits{.low = 0});
  visit("max_prefill_iters", settings.max_prefill_iters, Limits{.low = 1});
  visit("device", settings.device, Limits{.choices = "auto, cpu, cuda"});
  visit("threads", settings.threads, Limits{.low = 0, .high = 1024});
  visit("max_waiting", settings.max_waiting, Limits{.low = 1});
  visit("max_embedding_mib", settings.max_embedding_mib, Limits{.low = 1});
  visit("adapters", settings.adapters, Limits{});
  visit("max_adapter_mib", settings.max_adapter_mib, Limits{.low = 1});
  visit("grammar_compile_seconds", settings.grammar_compile_seconds,
        Limits{.low = 0, .excludes_low = true, .high = 3600});
  visit("session_idle_seconds", settings.session_idle_seconds, Limits{.low = 1});
  visit("step_timeout", settings.step_timeout, Limits{.low = 1});
  visit("eager_mode", settings.eager_mode, Limits{});
  visit("custom_module_map", settings.custom_module_map, Limits{});
  visit("worker_step_seconds", settings.worker_step_seconds, Limits{.low = 0, .excludes_low = true});
}

}  // namespace turbomind
