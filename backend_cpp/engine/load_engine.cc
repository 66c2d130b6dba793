#include "engine/load_engine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <utility>
#include <vector>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "device/cpu_operators.h"
#include "device/device.h"
#include "engine/disk/fingerprint.h"
#include "engine/engine.h"
#include "engine/grammar/process_compiler.h"
#include "engine/speculative/drafter.h"
#include "kernels/paged_attention.h"
#include "model/model_runner.h"
#include "model/native_runner.h"
#include "model/parallel_runner.h"
#include "model/step/image_rows.h"
#include "model/worker/worker_runner.h"

namespace turbomind {

namespace {

// Whether the frequencies are theta^(-2 i / dimensions), without any scaling.
bool is_plain(const RopeSpec& rope) {
  const double dimensions = 2.0 * static_cast<double>(rope.inv_freq.size());
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / dimensions);
    if (std::abs(rope.inv_freq[i] - plain) > 1e-4 * plain) return false;
  }
  return rope.attention_scaling == 1;
}

// Changes `spec` as the settings say that carry a model beyond the length it was trained for: rope_scaling_factor, from
// 1 on, has theta grow with prompts beyond it (dynamic NTK), use_logn_attn queries with the logarithm of their
// position. Throws Error for a model whose positions cannot be stretched so.
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
    if (!rope.stretch && is_plain(rope)) {
      rope.stretch.emplace().length = spec.max_position_embeddings;
    } else if (!rope.stretch || rope.stretch->kind != StretchKind::kDynamic) {
      throw invalid_argument("rope_scaling_factor: this model's checkpoint has its own scaling; use 0");
    }
    rope.stretch->kind = StretchKind::kDynamic;
    rope.stretch->factor = static_cast<float>(settings.rope_scaling_factor);
  }
}

const char kWorkerFile[] = "/worker.json";

void refuse(bool is_set, const std::string& name, const std::string& reason) {
  if (is_set) throw invalid_argument("the PyTorch engine has no " + name + ": " + reason);
}

// Throws Error where the settings name another format of weights than the checkpoint has.
void check_model_format(const EngineSettings& settings, const std::string& found) {
  if (settings.model_format.empty() || settings.model_format == found) return;
  throw invalid_argument("model_format is " + settings.model_format + ", but the checkpoint's weights are " + found +
                         "; leave model_format out or name that");
}

// Whether an engine directory is of such a model.
bool has_worker(const std::string& directory) {
  return std::filesystem::exists(directory + kWorkerFile);
}

// Starts the workers. `max_rows` and `limits` bound a step. Throws Error.
std::unique_ptr<ModelRunner> make_worker_runner(const std::string& directory, const ModelSpec& spec,
                                                const EngineSettings& settings, int max_rows,
                                                const StepLimits& limits) {
  refuse(settings.weight_bits != 0, "weight_bits", "quantize the checkpoint, or use the TurboMind engine");
  refuse(settings.rope_scaling_factor != 0, "rope_scaling_factor", "say it in the checkpoint's config.json");
  refuse(settings.use_logn_attn, "use_logn_attn", "only models of the TurboMind engine were trained with it");
  const Json worker = Json::parse_file(directory + kWorkerFile);
  check_model_format(settings, worker.at("weight_format").as_string());
  const std::filesystem::path checkpoint = worker.at("checkpoint").as_string();
  const int threads = settings.threads > 0 ? settings.threads : available_cpu_count();
  WorkerOptions options;
  options.ranks = settings.tp;
  options.vocab_size = spec.vocab_size;
  options.hidden_size = spec.hidden_size;
  options.layers = spec.num_layers;
  options.max_rows = max_rows;
  options.images = image_traits(spec);
  options.step_timeout = std::chrono::duration<double>(settings.worker_step_seconds);
  options.command = {worker.at("python").as_string(),
                     "-m",
                     "lmdeploy.pytorch.worker",
                     (std::filesystem::path(directory) / checkpoint).string(),
                     "--dtype=" + settings.dtype,
                     "--device=" + settings.device,
                     "--ranks=" + std::to_string(settings.tp),
                     "--threads=" + std::to_string(std::max(1, threads / settings.tp)),
                     "--quant-policy=" + std::to_string(settings.quant_policy),
                     "--custom-module-map=" + settings.custom_module_map,
                     std::string("--eager-mode=") + (settings.eager_mode ? "1" : "0")};
  return std::make_unique<WorkerRunner>(std::move(options), limits);
}

// A step is reported after the bound of its worker, so that the worker's own error comes first.
constexpr std::chrono::seconds kAfterWorker{60};

DType weight_type(const EngineSettings& settings, const ModelSpec& spec) {
  const std::string& name = settings.dtype == "auto" ? spec.dtype : settings.dtype;
  if (name == "bfloat16") return DType::kBFloat16;
  return name == "float16" ? DType::kFloat16 : DType::kFloat32;
}

WeightOptions weight_options(const EngineSettings& settings, const ModelSpec& spec, const Device& device) {
  WeightOptions options;
  options.dtype = weight_type(settings, spec);
  options.bits = settings.weight_bits;
  options.takes_mins = device.traits.takes_mins;
  return options;
}

CacheType cache_type(const EngineSettings& settings, DType dtype) {
  if (settings.quant_policy == 0) return dtype == DType::kFloat32 ? CacheType::kFloat32 : CacheType::kBFloat16;
  return settings.quant_policy == 8 ? CacheType::kInt8 : CacheType::kInt4;
}

// The model whole, or spread over `tp` ranks.
std::unique_ptr<ModelRunner> make_runner(const ModelSpec& spec, const EngineSettings& settings, const Device& device,
                                         const Checkpoint& checkpoint, int max_rows) {
  const WeightOptions options = weight_options(settings, spec, device);
  const CacheType cache = cache_type(settings, options.dtype);
  const int threads = settings.threads;
  const int ranks = settings.tp;
  if (ranks == 1) {
    return std::make_unique<NativeRunner>(device.make(threads), Shard::whole(spec), checkpoint, options, cache,
                                          max_rows, threads);
  }
  const int group = std::lcm(checkpoint.input_group(), options.bits != 0 ? options.group : 1);
  std::vector<Shard> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.push_back(Shard::of(spec, rank, ranks, group));
  const std::shared_ptr<RankGroup> devices = device.make_group(ranks, threads);
  const int loading_threads = std::max(1, (threads > 0 ? threads : available_cpu_count()) / ranks);
  const auto make = [&](int rank) {
    return std::make_unique<NativeRunner>(devices->make_operators(rank), shards[static_cast<size_t>(rank)], checkpoint,
                                          options, cache, max_rows, loading_threads);
  };
  return std::make_unique<ParallelRunner>(devices, make, device.traits.ranks_share_memory);
}

std::unique_ptr<ModelRunner> make_native_runner(const std::string& directory, const ModelSpec& spec,
                                                const EngineSettings& settings, const Device& device, int max_rows) {
  const Checkpoint checkpoint(directory);
  check_model_format(settings, checkpoint.weight_format());
  return make_runner(spec, settings, device, checkpoint, max_rows);
}

// What drafts for `target`: whole, on the same device, in one order with it where they share a cache.
std::unique_ptr<ModelRunner> make_drafting_runner(const std::string& directory, const ModelSpec& spec,
                                                  const SpeculativeConfig& speculation, const EngineSettings& given,
                                                  ModelRunner& target, int max_rows) {
  EngineSettings settings = given;
  settings.weight_bits = speculation.weight_bits;
  settings.model_format.clear();
  const Device& device = find_device(settings.device);
  const Checkpoint checkpoint(directory);
  check_model_format(settings, checkpoint.weight_format());
  std::unique_ptr<Operators> ops = target.operators_alongside();
  if (!ops) ops = device.make(settings.threads);
  const WeightOptions options = weight_options(settings, spec, device);
  return std::make_unique<NativeRunner>(std::move(ops), Shard::whole(spec), checkpoint, options,
                                        cache_type(settings, options.dtype), max_rows, settings.threads);
}

// A head for the model in `target`. Throws Error that says why it cannot be one.
std::unique_ptr<ModelRunner> make_head_runner(const SpeculativeConfig& speculation, const EngineSettings& given,
                                              const std::string& target, ModelRunner& runner, int max_rows) {
  const auto refuse = [&](const std::string& why) { throw invalid_argument("speculative_config: " + why); };
  if (has_worker(target)) refuse("heads draft for models that the TurboMind engine runs");
  ModelSpec spec = read_model_spec(speculation.model + "/spec.json");
  if (!spec.head) refuse(speculation.model + " is no head");
  if (spec.vocab_size != runner.traits().vocab_size || spec.head->target_hidden_size != runner.traits().hidden_size) {
    refuse(speculation.model + " is a head of another model");
  }
  extend_context(spec, given);
  runner.keep_hidden(spec.head->target_layers);
  return make_drafting_runner(speculation.model, spec, speculation, given, runner, max_rows);
}

// Null where no model drafts for `runner`. Throws Error that says why a model cannot.
std::unique_ptr<ModelRunner> make_draft_runner(const SpeculativeConfig& speculation, const EngineSettings& given,
                                               const std::string& target, const TokenTable& tokens, ModelRunner& runner,
                                               int max_rows) {
  if (!speculation.has_model) return nullptr;
  const auto refuse = [&](const std::string& why) { throw invalid_argument("speculative_config: " + why); };
  if (given.tp > 1 && !find_device(given.device).traits.ranks_share_memory) {
    refuse("draft models and heads run where tp is 1, or on CPUs");
  }
  if (speculation.is_head) return make_head_runner(speculation, given, target, runner, max_rows);
  const std::string& directory = speculation.model.empty() ? target : speculation.model;
  if (has_worker(directory)) refuse("the draft model must be one that the TurboMind engine runs");
  ModelSpec spec = read_model_spec(directory + "/spec.json");
  if (spec.recurrence) refuse("layers of " + spec.model_name + " keep a state; a model that drafts must keep none");
  extend_context(spec, given);
  if (!tokens.begins_like(TokenTable::from_file(directory + "/token_bytes.bin"))) {
    refuse("the draft model must have the tokenizer of the model");
  }
  return make_drafting_runner(directory, spec, speculation, given, runner, max_rows);
}

// cache_max_entry_count below 1 is a share of the free memory; from 1 on, a number of blocks.
int cache_page_count(const EngineSettings& settings, const EngineConfig& config, ModelRunner& runner, size_t limit) {
  if (config.plan.groups.empty()) return 0;
  const double wanted = settings.cache_max_entry_count;
  const int pages_of_block = config.plan.pages_of_block();
  // States of a fixed size come in addition: one a sequence that runs, and as many snapshots.
  const int state = config.plan.group_of(MemoryKind::kState);
  const int pages_of_state = state < 0 ? 0 : 2 * config.plan.groups[static_cast<size_t>(state)].pages;
  if (wanted >= 1) {
    const auto states = std::min(static_cast<double>(config.max_batch_size), wanted) * pages_of_state;
    return static_cast<int>(wanted * pages_of_block + states);
  }
  if (wanted != EngineSettings{}.cache_max_entry_count) limit = ~size_t{0};
  const bool has_other_memory =
      std::ranges::any_of(config.plan.groups, [](const CacheGroup& group) { return group.is_apart; });
  const size_t page_bytes = config.plan.page_bytes * (has_other_memory ? 2 : 1);
  const auto share = static_cast<size_t>(wanted * static_cast<double>(runner.free_cache_memory()));
  const size_t affordable = std::min(share, limit / static_cast<size_t>(settings.tp)) / page_bytes;
  const size_t blocks_of_one = (static_cast<size_t>(config.session_len) + config.block_len - 1) / config.block_len;
  const size_t useful = static_cast<size_t>(config.max_batch_size) *
                        (static_cast<size_t>(pages_of_block) * blocks_of_one + static_cast<size_t>(pages_of_state));
  return static_cast<int>(std::min(affordable, useful));
}

// The settings, without bits of a cache that the model does not have.
EngineSettings without_unused_bits(EngineSettings settings, const ModelSpec& spec, std::vector<std::string>& notes) {
  if (settings.quant_policy == 0 || (attention_layer_count(spec) > 0 && !spec.encoder)) return settings;
  notes.push_back(
      "quant_policy is ignored: " + spec.model_name +
      (spec.encoder ? " is an encoder, which has no cache" : " has no attention layers, whose cache it is for"));
  settings.quant_policy = 0;
  return settings;
}

// Throws Error when the host lacks memory for this many blocks.
int host_page_count(const EngineSettings& settings, const EngineConfig& config) {
  const int pages = settings.num_cpu_blocks * config.plan.pages_of_block();
  const size_t bytes = static_cast<size_t>(pages) * config.plan.page_bytes * static_cast<size_t>(settings.tp);
  if (const size_t available = available_memory(); bytes > available) {
    throw invalid_argument("num_cpu_blocks: " + std::to_string(settings.num_cpu_blocks) + " blocks take " +
                           std::to_string(bytes >> 20) + " MiB, the host has " + std::to_string(available >> 20) +
                           " MiB left");
  }
  return pages;
}

// An encoder's longest text runs in one step.
int step_rows(const EngineConfig& config, const ModelSpec& spec) {
  return spec.encoder ? std::max(config.max_step_tokens, config.session_len) : config.max_step_tokens;
}

int step_tokens(const EngineSettings& settings, const EngineConfig& config, const DeviceTraits& defaults) {
  int tokens = settings.num_tokens_per_iter;
  if (tokens == 0) {
    const bool is_default = settings.max_prefill_token_num == EngineSettings{}.max_prefill_token_num;
    tokens = is_default ? defaults.step_tokens : settings.max_prefill_token_num;
  }
  if (settings.max_prefill_iters > 1) {
    tokens = std::max(tokens, (config.session_len + settings.max_prefill_iters - 1) / settings.max_prefill_iters);
  }
  // Leaves a quarter of a full step to prompts (engine/schedule/scheduler.h).
  return std::max(tokens, (config.max_batch_size * 4 + 2) / 3);
}

// Special tokens have no text that a grammar could match, but for structural tags that name them.
wire::Vocabulary grammar_vocabulary(const TokenTable& tokens, const ModelSpec& spec) {
  wire::Vocabulary vocabulary;
  for (int32_t token = 0; token < spec.vocab_size; ++token) {
    const bool is_special = tokens.is_special(token);
    if (is_special && !tokens.bytes(token).empty()) vocabulary.special.emplace_back(token, tokens.bytes(token));
    vocabulary.tokens.emplace_back(is_special ? std::string_view() : tokens.bytes(token));
  }
  vocabulary.stop_token_ids = spec.eos_token_ids;
  return vocabulary;
}

// The engine shortens a session length that its cache cannot hold.
void report_session_length(const EngineSettings& settings, int wanted, const EngineConfig& config,
                           std::vector<std::string>& notes) {
  if (config.session_len == wanted) return;
  notes.push_back("session_len is " + std::to_string(config.session_len) + " instead of " +
                  (settings.session_len != 0 ? "" : "the model's ") + std::to_string(wanted) + ": the cache holds " +
                  std::to_string(config.page_count / std::max(1, config.plan.pages_of_block())) + " blocks of " +
                  std::to_string(config.block_len) + " tokens; raise cache_max_entry_count for more");
}

// An image whose tokens see each other comes in one step, alongside all decoding sequences.
void make_room_for_images(const ImagesSpec& images, const EngineSettings& settings, EngineConfig& config,
                          std::vector<std::string>& notes) {
  const int needed = images.whole_rows + config.max_batch_size;
  if (images.whole_rows == 0 || config.max_step_tokens >= needed) return;
  const bool is_set =
      settings.num_tokens_per_iter != 0 || settings.max_prefill_token_num != EngineSettings{}.max_prefill_token_num;
  if (is_set) {
    notes.push_back("a step holds " + std::to_string(needed) + " tokens instead of " +
                    std::to_string(config.max_step_tokens) + ": an image of this model comes in one step, alongside " +
                    "the " + std::to_string(config.max_batch_size) + " sequences of max_batch_size");
  }
  config.max_step_tokens = needed;
}

// Null where nobody asks for events. Started first, so that an endpoint in use is reported before a model is loaded.
std::unique_ptr<EventPublisher> start_event_publisher(const EngineSettings& settings, const std::string& python) {
  const Json& config = settings.kv_events_config;
  const Json* enabled = config.is_object() ? config.find("enable_kv_cache_events") : nullptr;
  const Json* publisher = config.is_object() ? config.find("publisher") : nullptr;
  if (enabled == nullptr || !enabled->as_bool()) return nullptr;
  if (publisher != nullptr && publisher->as_string() == "null") return nullptr;
  if (!settings.enable_prefix_caching) {
    throw invalid_argument(
        "kv_events_config needs enable_prefix_caching: without it no request finds what others left in the cache");
  }
  std::vector<std::string> command = {python, "-m", "lmdeploy.kv_events.publisher", config.dump()};
  return std::make_unique<EventPublisher>(std::move(command), settings.cache_block_seq_len);
}

// Files that keep the cache; none where nobody asks for them, or the model has nothing to keep.
DiskTierConfig disk_config(const EngineSettings& settings, const std::string& directory, const ModelSpec& spec,
                           const std::string& device, const CachePlan& plan, std::vector<std::string>& notes) {
  if (settings.cache_dir.empty()) return {};
  if (!settings.enable_prefix_caching) {
    throw invalid_argument(
        "cache_dir needs enable_prefix_caching: without it no request looks for what others computed");
  }
  if (has_worker(directory) || spec.encoder || plan.groups.empty()) {
    notes.push_back("cache_dir is ignored: " + spec.model_name +
                    (has_worker(directory) ? " runs in processes of its own, whose cache files cannot keep"
                                           : " has no cache that files could keep"));
    return {};
  }
  return {settings.cache_dir, static_cast<uint64_t>(settings.cache_dir_bytes),
          cache_fingerprint(directory, settings, device, plan)};
}

// A worker's runner ends steps that take too long itself, and starts the worker again.
std::chrono::seconds step_timeout(const EngineSettings& settings, bool has_worker) {
  const std::chrono::seconds given(settings.step_timeout);
  if (!has_worker) return given;
  const std::chrono::duration<double> of_worker(settings.worker_step_seconds);
  return std::max(given, std::chrono::ceil<std::chrono::seconds>(of_worker) + kAfterWorker);
}

}  // namespace

LoadedEngine load_engine(const std::string& directory, const EngineSettings& given, const std::string& python,
                         const LocateModel& locate) {
  ModelSpec spec = read_model_spec(directory + "/spec.json");
  LoadedEngine loaded;
  const EngineSettings settings = without_unused_bits(given, spec, loaded.notes);
  extend_context(spec, settings);
  const Device& device = find_device(settings.device);
  if (settings.tp > 1) device.expect_ranks();
  const DeviceTraits& defaults = device.traits;
  EngineConfig config;
  config.session_len = settings.session_len != 0 ? settings.session_len : std::max(2, spec.max_position_embeddings);
  if (spec.learned_positions > 0 && config.session_len > spec.learned_positions) {
    throw invalid_argument("session_len must be at most the " + std::to_string(spec.learned_positions) +
                           " positions that the model has learned, got " + std::to_string(config.session_len));
  }
  if (!defaults.has_sparse_attention && spec.attention.mla && spec.attention.mla->indexer) {
    const int dense = spec.attention.mla->indexer->top_k;
    if (settings.session_len == 0) config.session_len = std::min(config.session_len, dense);
    if (config.session_len > dense) {
      throw invalid_argument("session_len must be at most " + std::to_string(dense) + ", got " +
                             std::to_string(config.session_len) +
                             ": in longer sequences this model's attention is sparse, which this device does not have");
    }
  }
  config.max_batch_size = settings.max_batch_size != 0 ? settings.max_batch_size : defaults.batch_size;
  config.block_len = settings.cache_block_seq_len;
  config.max_step_tokens = step_tokens(settings, config, defaults);
  if (spec.images) make_room_for_images(*spec.images, settings, config, loaded.notes);
  config.enable_prefix_caching = settings.enable_prefix_caching;
  // A snapshot is made where a block ends.
  config.snapshot_interval =
      (settings.state_snapshot_interval + config.block_len - 1) / config.block_len * config.block_len;
  config.session_idle_limit = std::chrono::seconds(settings.session_idle_seconds);
  config.step_timeout = step_timeout(settings, has_worker(directory));
  config.max_waiting = settings.max_waiting;
  config.embedding_bytes = static_cast<size_t>(settings.max_embedding_mib) << 20;
  config.adapter_bytes = static_cast<size_t>(settings.max_adapter_mib) << 20;
  // On GPUs drafts keep steps from being launched ahead, and a worker's rows may depend on those next to them.
  const bool drafts_pay = defaults.drafts_pay && !has_worker(directory) && !spec.encoder;
  config.speculation = SpeculativeConfig::of(settings.speculative_config, drafts_pay);
  SpeculativeConfig& speculation = config.speculation;
  if (locate && (speculation.is_head || !speculation.model.empty())) speculation.model = locate(speculation, directory);
  config.eos_token_ids = spec.eos_token_ids;
  config.checks_invariants = std::getenv("LMDEPLOY_CHECK_INVARIANTS") != nullptr;

  std::unique_ptr<EventPublisher> events = start_event_publisher(settings, python);
  TokenTable tokens = TokenTable::from_file(directory + "/token_bytes.bin", spec.vocab_size);
  const StepLimits limits{config.max_batch_size, config.session_len, config.block_len};
  std::unique_ptr<ModelRunner> runner =
      has_worker(directory) ? make_worker_runner(directory, spec, settings, config.max_step_tokens, limits)
                            : make_native_runner(directory, spec, settings, device, step_rows(config, spec));
  runner->prepare(limits);
  auto draft_runner =
      make_draft_runner(config.speculation, settings, directory, tokens, *runner, drafter_rows(config.max_step_tokens));
  if (draft_runner) draft_runner->prepare(limits);
  config.plan = plan_caches(*runner, draft_runner.get(), limits);
  config.page_count = cache_page_count(settings, config, *runner, defaults.cache_limit);
  config.host_page_count = host_page_count(settings, config);
  config.disk = disk_config(settings, directory, spec, device.name, config.plan, loaded.notes);
  auto compiler = load_grammar_compiler(grammar_vocabulary(tokens, spec), settings.grammar_compile_seconds,
                                        loaded.no_grammar_reason);
  loaded.engine = std::make_unique<Engine>(config, std::move(runner), std::move(tokens), std::move(compiler),
                                           std::move(events), std::move(draft_runner));
  for (const auto& [name, path] : settings.adapters) loaded.engine->load_adapter(name, path);
  report_session_length(settings, config.session_len, loaded.engine->config(), loaded.notes);
  loaded.spec = std::move(spec);
  return loaded;
}

}  // namespace turbomind
