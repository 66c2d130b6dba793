#include "engine/resolve.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

const EngineSettings kDefaults;

// A step is reported after the bound of its worker, so that the worker's own error comes first.
constexpr std::chrono::seconds kAfterWorker{60};

// Whether the frequencies are theta^(-2 i / dimensions), without any scaling.
bool has_default_frequencies(const RopeSpec& rope) {
  const double dimensions = 2.0 * static_cast<double>(rope.inv_freq.size());
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const double default_frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / dimensions);
    if (std::abs(rope.inv_freq[i] - default_frequency) > 1e-4 * default_frequency) return false;
  }
  return rope.attention_scaling == 1;
}

// Carries a model beyond the length it was trained for: rope_scaling_factor, from 1 on, has theta grow with prompts
// beyond it (dynamic NTK), use_logn_attn queries with the logarithm of their position.
void extend_context(ModelSpec& spec, const EngineSettings& settings) {
  const auto grow_queries = [&](AttentionSpec& attention) {
    if (attention.logn_length == 0) attention.logn_length = spec.max_position_embeddings;
  };
  if (settings.use_logn_attn) {
    grow_queries(spec.attention);
    std::ranges::for_each(spec.attentions, grow_queries);
  }
  if (settings.rope_scaling_factor == 0) return;
  if (settings.rope_scaling_factor < 1) {
    throw invalid_argument("rope_scaling_factor must be 0 or >= 1, got " +
                           std::to_string(settings.rope_scaling_factor));
  }
  if (spec.ropes.empty()) throw invalid_argument("rope_scaling_factor: this model does not rotate positions; use 0");
  for (RopeSpec& rope : spec.ropes) {
    if (!rope.stretch && has_default_frequencies(rope)) {
      rope.stretch.emplace().length = spec.max_position_embeddings;
    } else if (!rope.stretch || rope.stretch->kind != StretchKind::kDynamic) {
      throw invalid_argument("rope_scaling_factor: this model's checkpoint has its own scaling; use 0");
    }
    rope.stretch->kind = StretchKind::kDynamic;
    rope.stretch->factor = static_cast<float>(settings.rope_scaling_factor);
  }
}

void check_worker_settings(const EngineSettings& settings) {
  const auto reject = [](bool is_set, const std::string& name, const std::string& reason) {
    if (is_set) throw invalid_argument("the PyTorch engine has no " + name + ": " + reason);
  };
  reject(settings.weight_bits != 0, "weight_bits", "quantize the checkpoint, or use the TurboMind engine");
  reject(settings.rope_scaling_factor != 0, "rope_scaling_factor", "say it in the checkpoint's config.json");
  reject(settings.use_logn_attn, "use_logn_attn", "only models of the TurboMind engine were trained with it");
}

Storage storage_of(const EngineSettings& settings, int weight_bits, const ModelSpec& spec, const DeviceTraits& device) {
  Storage storage;
  const std::string& name = settings.dtype == "auto" ? spec.dtype : settings.dtype;
  const bool is_float32 = name != "bfloat16" && name != "float16";
  storage.weights.dtype = is_float32 ? DType::kFloat32 : name == "float16" ? DType::kFloat16 : DType::kBFloat16;
  storage.weights.bits = weight_bits;
  storage.weights.takes_gguf_blocks = device.takes_gguf_blocks;
  storage.weights.is_tiled = device.has_tiled_weights;
  if (settings.quant_policy == 0) {
    storage.cache = is_float32 ? CacheType::kFloat32 : CacheType::kBFloat16;
  } else {
    storage.cache = settings.quant_policy == 8 ? CacheType::kInt8 : CacheType::kInt4;
  }
  return storage;
}

int session_len(const EngineSettings& settings, const ModelSpec& spec, const DeviceTraits& device) {
  const int requested = settings.session_len != 0 ? settings.session_len : std::max(2, spec.max_position_embeddings);
  const auto check = [&](int max_len, const std::string& unit, const std::string& reason) {
    if (requested <= max_len) return;
    throw invalid_argument("session_len must be at most " + std::to_string(max_len) + unit + ", got " +
                           std::to_string(requested) + reason);
  };
  if (spec.learned_positions > 0) check(spec.learned_positions, " positions that the model has learned", "");
  if (device.has_sparse_attention || !spec.attention.mla || !spec.attention.mla->indexer) return requested;
  const int dense = spec.attention.mla->indexer->top_k;
  if (settings.session_len == 0) return std::min(requested, dense);
  check(dense, "", ": in longer sequences this model's attention is sparse, which this device does not have");
  return requested;
}

int step_tokens(const EngineSettings& settings, const EngineConfig& config, const DeviceTraits& device) {
  int tokens = settings.num_tokens_per_iter;
  if (tokens == 0) {
    const bool is_default = settings.max_prefill_token_num == kDefaults.max_prefill_token_num;
    tokens = is_default ? device.step_tokens : settings.max_prefill_token_num;
  }
  if (settings.max_prefill_iters > 1) {
    tokens = std::max(tokens, (config.session_len + settings.max_prefill_iters - 1) / settings.max_prefill_iters);
  }
  // Leaves a quarter of a full step to prompts (engine/schedule/scheduler.h).
  return std::max(tokens, (config.max_batch_size * 4 + 2) / 3);
}

// An image whose tokens see each other comes in one step, alongside all decoding sequences.
void make_room_for_images(ResolvedEngine& engine) {
  EngineConfig& config = engine.config;
  const EngineSettings& settings = engine.settings;
  const int rows = engine.spec.images ? engine.spec.images->whole_rows : 0;
  const int needed = rows + config.max_batch_size;
  if (rows == 0 || config.max_step_tokens >= needed) return;
  if (settings.num_tokens_per_iter != 0 || settings.max_prefill_token_num != kDefaults.max_prefill_token_num) {
    engine.notes.push_back("a step holds " + std::to_string(needed) + " tokens instead of " +
                           std::to_string(config.max_step_tokens) + ": an image of this model comes in one step, " +
                           "alongside the " + std::to_string(config.max_batch_size) + " sequences of max_batch_size");
  }
  config.max_step_tokens = needed;
}

// Bits of a cache that the model does not have are ignored.
void drop_unused_bits(ResolvedEngine& engine) {
  const ModelSpec& spec = engine.spec;
  if (engine.settings.quant_policy == 0 || (attention_layer_count(spec) > 0 && !spec.encoder)) return;
  engine.notes.push_back(
      "quant_policy is ignored: " + spec.model_name +
      (spec.encoder ? " is an encoder, which has no cache" : " has no attention layers, whose cache it is for"));
  engine.settings.quant_policy = 0;
}

// Contents that others left in the cache are found with prefix caching alone.
void check_prefix_caching(const EngineSettings& settings, const std::string& name, const std::string& reason) {
  if (!settings.enable_prefix_caching) {
    throw invalid_argument(name + " needs enable_prefix_caching: without it no request " + reason);
  }
}

bool publishes_events(const EngineSettings& settings) {
  const Json& config = settings.kv_events_config;
  const Json* enabled = config.is_object() ? config.find("enable_kv_cache_events") : nullptr;
  const Json* publisher = config.is_object() ? config.find("publisher") : nullptr;
  if (enabled == nullptr || !enabled->as_bool()) return false;
  if (publisher != nullptr && publisher->as_string() == "null") return false;
  check_prefix_caching(settings, "kv_events_config", "finds what others left in the cache");
  return true;
}

// Files that keep the cache; none where nobody asks for them, or the model has nothing to keep.
DiskTierConfig disk_of(ResolvedEngine& engine) {
  const EngineSettings& settings = engine.settings;
  const ModelSpec& spec = engine.spec;
  if (settings.cache_dir.empty()) return {};
  check_prefix_caching(settings, "cache_dir", "looks for what others computed");
  if (!engine.has_worker && !spec.encoder && (attention_layer_count(spec) > 0 || spec.recurrence)) {
    return {settings.cache_dir, static_cast<uint64_t>(settings.cache_dir_bytes), ""};
  }
  engine.notes.push_back("cache_dir is ignored: " + spec.model_name +
                         (engine.has_worker ? " runs in processes of its own, whose cache files cannot keep"
                                            : " has no cache that files could keep"));
  return {};
}

// A worker's runner ends steps that take too long itself, and starts the worker again.
std::chrono::seconds step_timeout(const EngineSettings& settings, bool has_worker) {
  const std::chrono::seconds given(settings.step_timeout);
  if (!has_worker) return given;
  const std::chrono::duration<double> of_worker(settings.worker_step_seconds);
  return std::max(given, std::chrono::ceil<std::chrono::seconds>(of_worker) + kAfterWorker);
}

[[noreturn]] void reject_drafting(const std::string& reason) {
  throw invalid_argument("speculative_config: " + reason);
}

}  // namespace

ResolvedEngine resolve(const EngineSettings& given, ModelSpec spec, const DeviceTraits& device, bool has_worker) {
  ResolvedEngine engine{given, std::move(spec), device, has_worker, {}, false, {}, 0, {}};
  const EngineSettings& settings = engine.settings;
  if (has_worker) check_worker_settings(settings);
  drop_unused_bits(engine);
  extend_context(engine.spec, settings);
  engine.storage = storage_of(settings, settings.weight_bits, engine.spec, device);
  engine.publishes_events = publishes_events(settings);

  EngineConfig& config = engine.config;
  config.session_len = session_len(settings, engine.spec, device);
  config.max_batch_size = settings.max_batch_size != 0 ? settings.max_batch_size : device.batch_size;
  config.block_len = settings.cache_block_seq_len;
  config.max_step_tokens = step_tokens(settings, config, device);
  make_room_for_images(engine);
  // An encoder's longest text runs in one step.
  const bool is_encoder = engine.spec.encoder.has_value();
  engine.max_tokens = is_encoder ? std::max(config.max_step_tokens, config.session_len) : config.max_step_tokens;
  config.enable_prefix_caching = settings.enable_prefix_caching;
  // A snapshot is made where a block ends.
  config.snapshot_interval =
      (settings.state_snapshot_interval + config.block_len - 1) / config.block_len * config.block_len;
  config.session_idle_limit = std::chrono::seconds(settings.session_idle_seconds);
  config.step_timeout = step_timeout(settings, has_worker);
  config.max_waiting = settings.max_waiting;
  config.embedding_bytes = static_cast<size_t>(settings.max_embedding_mib) << 20;
  config.adapter_bytes = static_cast<size_t>(settings.max_adapter_mib) << 20;
  config.disk = disk_of(engine);
  config.eos_token_ids = engine.spec.eos_token_ids;
  // On GPUs drafts keep steps from being launched ahead, and a worker's rows may depend on those next to them.
  const bool drafts_pay = device.drafts_pay && !has_worker && !is_encoder;
  config.speculation = SpeculativeConfig::of(settings.speculative_config, drafts_pay);
  if (config.speculation.has_model && settings.tp > 1 && !device.ranks_share_memory) {
    reject_drafting("draft models and heads run where tp is 1, or on CPUs");
  }
  if (config.speculation.is_head && has_worker) {
    reject_drafting("heads draft for models that the TurboMind engine runs");
  }
  return engine;
}

ResolvedDrafter resolve_drafter(const ResolvedEngine& target, ModelSpec spec, bool has_worker) {
  const SpeculativeConfig& speculation = target.config.speculation;
  if (has_worker) reject_drafting("the draft model must be one that the TurboMind engine runs");
  if (speculation.is_head) {
    if (!spec.head) reject_drafting(speculation.model + " is no head");
    if (spec.vocab_size != target.spec.vocab_size || spec.head->target_hidden_size != target.spec.hidden_size) {
      reject_drafting(speculation.model + " is a head of another model");
    }
  } else if (spec.recurrence) {
    reject_drafting("layers of " + spec.model_name + " keep a state; a model that drafts must keep none");
  }
  extend_context(spec, target.settings);
  const Storage storage = storage_of(target.settings, speculation.weight_bits, spec, target.device);
  return {std::move(spec), storage};
}

// cache_max_entry_count below 1 is a share of the free memory; from 1 on, a number of blocks.
int cache_page_count(const ResolvedEngine& engine, size_t free_bytes) {
  const EngineConfig& config = engine.config;
  const CachePlan& plan = config.plan;
  if (plan.groups.empty()) return 0;
  const double requested = engine.settings.cache_max_entry_count;
  const int pages_of_block = plan.pages_of_block();
  // States of a fixed size come in addition: one a sequence that runs, and as many snapshots.
  const int state = plan.group_of(MemoryKind::kState);
  const int pages_of_state = state < 0 ? 0 : 2 * plan.groups[static_cast<size_t>(state)].pages;
  if (requested >= 1) {
    const auto states = std::min(static_cast<double>(config.max_batch_size), requested) * pages_of_state;
    return static_cast<int>(requested * pages_of_block + states);
  }
  const size_t limit = requested == kDefaults.cache_max_entry_count ? engine.device.cache_limit : ~size_t{0};
  const bool has_other_memory =
      std::ranges::any_of(plan.groups, [](const CacheGroup& group) { return group.is_separate_pool; });
  const size_t page_bytes = plan.page_bytes * (has_other_memory ? 2 : 1);
  const auto share = static_cast<size_t>(requested * static_cast<double>(free_bytes));
  const size_t affordable = std::min(share, limit / static_cast<size_t>(engine.settings.tp)) / page_bytes;
  const size_t blocks_of_one = (static_cast<size_t>(config.session_len) + config.block_len - 1) / config.block_len;
  const size_t useful = static_cast<size_t>(config.max_batch_size) *
                        (static_cast<size_t>(pages_of_block) * blocks_of_one + static_cast<size_t>(pages_of_state));
  return static_cast<int>(std::min(affordable, useful));
}

int host_page_count(const ResolvedEngine& engine, size_t free_bytes) {
  const EngineSettings& settings = engine.settings;
  const int pages = settings.num_cpu_blocks * engine.config.plan.pages_of_block();
  const size_t bytes = static_cast<size_t>(pages) * engine.config.plan.page_bytes * static_cast<size_t>(settings.tp);
  if (bytes > free_bytes) {
    throw invalid_argument("num_cpu_blocks: " + std::to_string(settings.num_cpu_blocks) + " blocks take " +
                           std::to_string(bytes >> 20) + " MiB, the host has " + std::to_string(free_bytes >> 20) +
                           " MiB left");
  }
  return pages;
}

}  // namespace turbomind
