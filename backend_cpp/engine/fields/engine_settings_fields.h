// How a model is run: the fields of TurbomindEngineConfig and of WorkerSettings.
// Written by `make fields` from lmdeploy/messages.py and lmdeploy/pytorch/settings.py; change that.
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "engine/fields/limits.h"

namespace turbomind {

struct EngineSettings {
  // Type of the weights and activations in memory; auto: the checkpoint's.
  std::string dtype = "auto";
  // Quantize the weights to this many bits while loading: faster, slightly less accurate. Weights that the
  // checkpoint has in 8 or 4 bits stay as they are.
  int weight_bits = 0;
  // Layout of the checkpoint; default: detected; a given one must agree.
  std::string model_format;
  // Tensor parallelism: the number of GPUs, or of parts of the CPU's cores, that share a model. Must divide the
  // number of the model's heads.
  int tp = 1;
  // Context length, prompt and response together; default: what the model was trained for, as far as it fits the
  // cache.
  int session_len = 0;
  // Most sequences in a step; default: 64 on a CPU, 256 on a GPU.
  int max_batch_size = 0;
  // Share of the free memory for the KV cache; from 1 on, the number of its blocks. On a CPU the default also means
  // at most 4 GiB.
  double cache_max_entry_count = 0.8;
  // Blocks the cache grows by; -1: all at once.
  int cache_chunk_size = -1;
  // Tokens in a block of the KV cache.
  int cache_block_seq_len = 64;
  // More blocks of the KV cache, in the host's memory: blocks evicted from the device go there, and are copied back
  // instead of computed again; 0: none.
  int num_cpu_blocks = 0;
  // A directory for cached blocks, of this user alone: what prompts and responses leave in the cache is kept in
  // files there, found again after a restart and by other servers on the directory. Needs enable_prefix_caching.
  std::string cache_dir;
  // Most bytes in cache_dir; what has not been used for longest is removed.
  double cache_dir_bytes = 10000000000.0;
  // Tokens of a prompt between snapshots of the state of recurrent layers, from which other prompts continue; 0: at
  // the ends of prompts and responses, and where prompts part, alone.
  int state_snapshot_interval = 512;
  // Reuse the cached blocks of equal prompt prefixes.
  bool enable_prefix_caching = true;
  // Publish to routers, over ZMQ and as vLLM does, which blocks are in the cache: a JSON object with
  // "enable_kv_cache_events": true and what docs/deployment/operations.md lists. Needs enable_prefix_caching.
  Json kv_events_config;
  // Speculative decoding: draft tokens and verify several in a step; same output, sooner: a JSON object with what
  // docs/guides/speculative-decoding.md lists, such as {"method": "ngram"}; auto: that on CPUs, where it pays;
  // none: off.
  Json speculative_config = Json::parse(R"("auto")");
  // Bits of the KV cache; 0: not quantized.
  int quant_policy = 0;
  // Factor of dynamic NTK scaling beyond the trained length; 0: as the model says.
  double rope_scaling_factor = 0.0;
  // Scale attention by the logarithm of the position.
  bool use_logn_attn = false;
  // Where a model that has to be downloaded is stored.
  std::string download_dir;
  // Which version of it: a branch, tag or commit.
  std::string revision;
  // Most prompt tokens in a step. On a CPU the default means 256, which keeps running responses going.
  int max_prefill_token_num = 8192;
  // Token budget of a step, for prefill and decode together; 0: max_prefill_token_num.
  int num_tokens_per_iter = 0;
  // Over 1: a step is made so large that no prompt takes more of them; 1: no such bound.
  int max_prefill_iters = 1;
  // What to run on; auto: a GPU where the build and the machine have one, else the CPU.
  std::string device = "auto";
  // CPU threads that compute; 0: one for each core this process may use.
  int threads = 0;
  // Requests that may wait; one more is refused as overloaded.
  int max_waiting = 4096;
  // Most MiB of image embeddings, of open requests and sessions together; a request beyond is refused as
  // overloaded.
  int max_embedding_mib = 1024;
  // LoRA adapters: name to path. More can be loaded later.
  std::map<std::string, std::string> adapters;
  // Most MiB of LoRA adapters in memory. Unused ones are evicted when another is needed.
  int max_adapter_mib = 1024;
  // Most processor seconds to compile a response format; one that takes longer is refused.
  double grammar_compile_seconds = 10.0;
  // A session that is not used for so long is forgotten.
  int session_idle_seconds = 3600;
  // Most seconds of a step. After them the engine counts as hanging: it is not ready, and the server restarts.
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
