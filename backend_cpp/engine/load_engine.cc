#include "engine/load_engine.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <span>
#include <utility>

#include "base/cpu_share.h"
#include "base/digest/sha256.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "device/cpu_operators.h"
#include "device/device.h"
#include "engine/grammar/process_compiler.h"
#include "engine/resolve.h"
#include "engine/speculative/drafter.h"
#include "kernels/cpu/isa.h"
#include "model/model_runner.h"
#include "model/native_runner.h"
#include "model/parallel_runner.h"
#include "model/step/image_tokens.h"
#include "model/worker/worker_runner.h"

namespace turbomind {

namespace {

const char kWorkerFile[] = "/worker.json";

// Throws Error where the settings name another format of weights than the checkpoint has.
void check_model_format(const EngineSettings& settings, const std::string& found) {
  if (settings.model_format.empty() || settings.model_format == found) return;
  throw invalid_argument("model_format is " + settings.model_format + ", but the checkpoint's weights are " + found +
                         "; leave model_format out or name that");
}

// Whether an engine directory is of a model that workers run.
bool has_worker(const std::string& directory) {
  return std::filesystem::exists(directory + kWorkerFile);
}

int threads_of_rank(const EngineSettings& settings) {
  return std::max(1, (settings.threads > 0 ? settings.threads : available_cpu_count()) / settings.tp);
}

std::unique_ptr<ModelRunner> make_worker_runner(const std::string& directory, const ResolvedEngine& engine,
                                                std::vector<std::string> command, const StepLimits& limits) {
  const EngineSettings& settings = engine.settings;
  const Json worker = Json::parse_file(directory + kWorkerFile);
  check_model_format(settings, worker.at("weight_format").as_string());
  if (command.empty()) throw invalid_argument("this program runs no models of the PyTorch engine");
  const std::filesystem::path checkpoint = worker.at("checkpoint").as_string();
  command.insert(command.end(), {(std::filesystem::path(directory) / checkpoint).string(), "--dtype=" + settings.dtype,
                                 "--device=" + settings.device, "--ranks=" + std::to_string(settings.tp),
                                 "--threads=" + std::to_string(threads_of_rank(settings)),
                                 "--quant-policy=" + std::to_string(settings.quant_policy),
                                 "--custom-module-map=" + settings.custom_module_map,
                                 std::string("--eager-mode=") + (settings.eager_mode ? "1" : "0")});
  WorkerOptions options;
  options.command = std::move(command);
  options.ranks = settings.tp;
  options.vocab_size = engine.spec.vocab_size;
  options.hidden_size = engine.spec.hidden_size;
  options.layers = engine.spec.num_layers;
  options.max_tokens = engine.max_tokens;
  options.images = image_traits(engine.spec);
  options.step_timeout = std::chrono::duration<double>(settings.worker_step_seconds);
  return std::make_unique<WorkerRunner>(std::move(options), limits);
}

// The model whole, or parts of it for `tp` ranks.
std::vector<Shard> shards_of(const ResolvedEngine& engine, const Checkpoint& checkpoint) {
  const int ranks = engine.settings.tp;
  if (ranks == 1) return {Shard::whole(engine.spec)};
  const WeightOptions& weights = engine.storage.weights;
  const int group = std::lcm(checkpoint.input_group(), weights.bits != 0 ? weights.group : 1);
  std::vector<Shard> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.push_back(Shard::of(engine.spec, rank, ranks, group));
  return shards;
}

std::unique_ptr<ModelRunner> make_native_runner(const std::string& directory, const ResolvedEngine& engine,
                                                const Device& device) {
  const Checkpoint checkpoint(directory);
  const EngineSettings& settings = engine.settings;
  check_model_format(settings, checkpoint.weight_format());
  const auto& [weights, cache] = engine.storage;
  const int ranks = settings.tp;
  const std::vector<Shard> shards = shards_of(engine, checkpoint);
  if (ranks == 1) {
    return std::make_unique<NativeRunner>(device.make(settings.threads), shards.front(), checkpoint, weights, cache,
                                          engine.max_tokens, settings.threads);
  }
  const std::shared_ptr<RankGroup> devices = device.make_group(ranks, settings.threads);
  const auto make = [&](int rank) {
    return std::make_unique<NativeRunner>(devices->make_operators(rank), shards[static_cast<size_t>(rank)], checkpoint,
                                          engine.storage.weights, engine.storage.cache, engine.max_tokens,
                                          threads_of_rank(settings));
  };
  return std::make_unique<ParallelRunner>(devices, make, device.traits.ranks_share_memory);
}

// The engine directory of the model that drafts for `target`.
const std::string& drafter_directory(const std::string& target, const ResolvedEngine& engine) {
  const std::string& model = engine.config.speculation.model;
  return model.empty() ? target : model;
}

ResolvedDrafter find_drafter(const std::string& target, const ResolvedEngine& engine) {
  const std::string& directory = drafter_directory(target, engine);
  return resolve_drafter(engine, read_model_spec(directory + "/spec.json"), has_worker(directory));
}

// The model that drafts for `target`: whole, on the same device, in one order with it where they share a cache. Null
// where no model does.
std::unique_ptr<ModelRunner> make_draft_runner(const std::string& target, const ResolvedEngine& engine,
                                               const Device& device, const TokenTable& tokens, ModelRunner& runner) {
  if (!engine.config.speculation.has_model) return nullptr;
  const std::string& directory = drafter_directory(target, engine);
  const ResolvedDrafter drafter = find_drafter(target, engine);
  if (drafter.spec.head) {
    runner.keep_hidden(drafter.spec.head->target_layers);
  } else if (!tokens.begins_like(TokenTable::from_file(directory + "/token_bytes.bin"))) {
    throw invalid_argument("speculative_config: the draft model must have the tokenizer of the model");
  }
  const Checkpoint checkpoint(directory);
  std::unique_ptr<Operators> ops = runner.operators_alongside();
  if (!ops) ops = device.make(engine.settings.threads);
  return std::make_unique<NativeRunner>(std::move(ops), Shard::whole(drafter.spec), checkpoint, drafter.storage.weights,
                                        drafter.storage.cache, max_drafter_tokens(engine.config.max_step_tokens),
                                        engine.settings.threads);
}

// Special tokens have no text that a grammar could match, but for structural tags that name them.
std::unique_ptr<GrammarCompiler> grammar_compiler(const Programs& programs, const TokenTable& tokens,
                                                  const ModelSpec& spec, double seconds) {
  if (programs.grammar.empty()) return nullptr;
  std::vector<std::string> vocabulary;
  SpecialTokens special;
  for (int32_t token = 0; token < spec.vocab_size; ++token) {
    const std::string_view bytes = tokens.bytes(token);
    const bool is_special = tokens.is_special(token);
    const bool is_end = std::ranges::find(spec.eos_token_ids, token) != spec.eos_token_ids.end();
    if (is_special && !is_end && !bytes.empty()) special.emplace_back(token, bytes);
    vocabulary.emplace_back(is_special ? std::string_view() : bytes);
  }
  return load_grammar_compiler(programs.grammar, std::move(vocabulary), std::move(special), seconds);
}

// The engine shortens a session length that its cache cannot hold.
void report_session_length(const ResolvedEngine& requested, const EngineConfig& config,
                           std::vector<std::string>& notes) {
  if (config.session_len == requested.config.session_len) return;
  notes.push_back("session_len is " + std::to_string(config.session_len) + " instead of " +
                  (requested.settings.session_len != 0 ? "" : "the model's ") +
                  std::to_string(requested.config.session_len) + ": the cache holds " +
                  std::to_string(config.page_count / std::max(1, config.plan.pages_of_block())) + " blocks of " +
                  std::to_string(config.block_len) + " tokens; raise cache_max_entry_count for more");
}

// Null where nobody asks for events. Started first, so that an endpoint in use is reported before a model is loaded.
std::unique_ptr<EventPublisher> start_event_publisher(const ResolvedEngine& engine, std::vector<std::string> command) {
  if (!engine.publishes_events) return nullptr;
  if (command.empty()) throw invalid_argument("kv_events_config: this program publishes no events");
  command.push_back(engine.settings.kv_events_config.dump());
  return std::make_unique<EventPublisher>(std::move(command), engine.config.block_len);
}

// To be raised whenever a change of the engine changes what pages hold, or the bits of it.
constexpr int kContentVersion = 1;

void add_members(const Json& object, const std::string& left_out, std::string& text) {
  for (const auto& [key, value] : object.as_object()) {
    if (key != left_out) text += key + ":" + value.dump() + "\n";
  }
}

// Fingerprint of all that keys, values and states depend on besides tokens, the same on other machines: of an
// engine directory whose model runs on a device with these settings, and of its cache's layout. Reads all weights.
// Files and directories may be called anything.
std::string cache_fingerprint(const std::string& directory, const EngineSettings& settings, const std::string& device,
                              const CachePlan& plan) {
  std::string text = "content " + std::to_string(kContentVersion) + "\n";
  add_members(Json::parse_file(directory + "/spec.json"), "model_name", text);
  add_members(Json::parse_file(directory + "/manifest.json"), "files", text);
  for (const std::filesystem::path& file : weight_files(directory)) {
    const MappedFile weights(file.string());
    text += std::to_string(checksum(std::span(weights.data(), weights.size()))) + "\n";
  }
  text += device + " " + kernels().name + " tp " + std::to_string(settings.tp) + "\n";
  text += settings.dtype + " weights " + std::to_string(settings.weight_bits) + " cache " +
          std::to_string(settings.quant_policy) + " rope " + std::to_string(settings.rope_scaling_factor) +
          (settings.use_logn_attn ? " logn" : "") + "\n";
  text += "block " + std::to_string(plan.block_len) + " page " + std::to_string(plan.page_bytes) + "\n";
  for (const CacheGroup& group : plan.groups) {
    for (const size_t value :
         {static_cast<size_t>(group.kind), static_cast<size_t>(group.window), static_cast<size_t>(group.block_len),
          static_cast<size_t>(group.pieces), group.piece_bytes, static_cast<size_t>(group.pages)}) {
      text += std::to_string(value) + " ";
    }
    for (const int layer : group.layers) text += std::to_string(layer) + ",";
    text += "\n";
  }
  return hex(sha256(text));
}

size_t left(size_t limit, size_t taken) {
  return limit - std::min(limit, taken);
}

void expect_to_fit(size_t weights, size_t cache, size_t limit) {
  if (cache <= left(limit, weights) && weights <= limit) return;
  const auto mb = [](size_t bytes) { return std::to_string((bytes + 999'999) / 1'000'000) + " MB"; };
  throw Error(ErrorCode::kUnavailable, "the model needs " + mb(weights) + " for its weights and " + mb(cache) +
                                           " for its cache, and all models may take " + mb(limit) +
                                           "; raise models_memory, or lower cache_max_entry_count");
}

ResolvedEngine resolve_in(const std::string& directory, const EngineSettings& settings, const Programs& programs) {
  const Device& device = find_device(settings.device);
  ResolvedEngine resolved =
      resolve(settings, read_model_spec(directory + "/spec.json"), device.traits, has_worker(directory));
  if (resolved.settings.tp > 1) device.expect_ranks();
  SpeculativeConfig& drafts = resolved.config.speculation;
  if (programs.locate && (drafts.is_head || !drafts.model.empty())) drafts.model = programs.locate(drafts, directory);
  return resolved;
}

}  // namespace

std::vector<std::filesystem::path> weight_files(const std::string& directory) {
  const std::filesystem::path folder = directory;
  std::vector<std::filesystem::path> files;
  if (has_worker(directory)) return files;
  const Json manifest = Json::parse_file(directory + "/manifest.json");
  for (const Json& file : manifest.at("files").as_array()) files.push_back(folder / file.as_string());
  return files;
}

PlannedEngine plan_engine(const std::string& directory, const EngineSettings& settings, const Programs& programs,
                          const MemoryBounds& bounds) {
  ResolvedEngine resolved = resolve_in(directory, settings, programs);
  EngineConfig& config = resolved.config;
  const StepLimits limits{config.max_batch_size, config.session_len, config.block_len};
  ModelSpec spec = resolved.spec;  // of a rank
  EngineMemory memory;
  if (!resolved.has_worker) {
    const Checkpoint checkpoint(directory);
    for (const Shard& shard : shards_of(resolved, checkpoint)) {
      memory.weights += NativeRunner::weight_bytes_of(shard, checkpoint, resolved.storage.weights);
      spec = shard.spec;
    }
  }
  if (spec.attention.mla && !find_device(resolved.settings.device).traits.has_sparse_attention) {
    spec.attention.mla->indexer.reset();
  }
  std::vector<CacheGroup> groups = NativeRunner::cache_groups_of(spec, resolved.storage.cache, limits);
  if (config.speculation.has_model) {
    const ResolvedDrafter drafter = find_drafter(directory, resolved);
    const Checkpoint checkpoint(drafter_directory(directory, resolved));
    memory.weights += NativeRunner::weight_bytes_of(Shard::whole(drafter.spec), checkpoint, drafter.storage.weights);
    for (CacheGroup& group : NativeRunner::cache_groups_of(drafter.spec, drafter.storage.cache, limits)) {
      group.kind = MemoryKind::kDraft;
      groups.push_back(std::move(group));
    }
  }
  config.plan = plan_cache(limits.block_len, std::move(groups));
  config.page_count = cache_page_count(resolved, std::min(available_memory(), left(bounds.bytes, memory.weights)));
  config.host_page_count = host_page_count(resolved, available_memory());
  memory.cache = static_cast<size_t>(config.page_count + config.host_page_count) * config.plan.page_bytes;
  config.session_len = config.plan.max_tokens(config.page_count, config.max_step_tokens, config.session_len);
  return {config, memory};
}

namespace {

void expect_planned(const PlannedEngine& planned, const EngineConfig& config, size_t weights) {
  if (planned.memory.weights == weights && planned.config.plan.page_bytes == config.plan.page_bytes) return;
  throw internal_error("planned for " + std::to_string(planned.memory.weights) + " bytes of weights and pages of " +
                       std::to_string(planned.config.plan.page_bytes) + ", loaded " + std::to_string(weights) +
                       " and " + std::to_string(config.plan.page_bytes));
}

}  // namespace

LoadedEngine load_engine(const std::string& directory, const EngineSettings& given, const Programs& programs,
                         const MemoryBounds& bounds) {
  const Device& device = find_device(given.device);
  ResolvedEngine resolved = resolve_in(directory, given, programs);
  const EngineSettings& settings = resolved.settings;
  EngineConfig& config = resolved.config;
  config.checks_invariants = std::getenv("LMDEPLOY_CHECK_INVARIANTS") != nullptr;

  std::unique_ptr<EventPublisher> events = start_event_publisher(resolved, programs.publisher);
  TokenTable tokens = run_in_background(
      [&] { return TokenTable::from_file(directory + "/token_bytes.bin", resolved.spec.vocab_size); });
  const StepLimits limits{config.max_batch_size, config.session_len, config.block_len};
  std::unique_ptr<ModelRunner> runner = resolved.has_worker
                                            ? make_worker_runner(directory, resolved, programs.worker, limits)
                                            : make_native_runner(directory, resolved, device);
  runner->prepare(limits);
  std::unique_ptr<ModelRunner> draft_runner = make_draft_runner(directory, resolved, device, tokens, *runner);
  if (draft_runner) draft_runner->prepare(limits);
  config.plan = plan_caches(*runner, draft_runner.get(), limits);
  const size_t weights = runner->weight_bytes() + (draft_runner ? draft_runner->weight_bytes() : 0);
  config.page_count =
      bounds.page_count > 0
          ? bounds.page_count
          : cache_page_count(resolved, std::min(runner->free_cache_memory(), left(bounds.bytes, weights)));
  if (config.checks_invariants && !resolved.has_worker) {  // workers lay out their caches themselves
    expect_planned(plan_engine(directory, given, programs, bounds), config, weights);
  }
  expect_to_fit(weights, static_cast<size_t>(config.page_count) * config.plan.page_bytes, bounds.bytes);
  config.host_page_count = host_page_count(resolved, available_memory());
  if (!config.disk.directory.empty()) {
    config.disk.fingerprint =
        run_in_background([&] { return cache_fingerprint(directory, settings, device.name, config.plan); });
  }
  LoadedEngine loaded{std::move(resolved.spec), nullptr, std::move(resolved.notes)};
  auto compiler = grammar_compiler(programs, tokens, loaded.spec, settings.grammar_compile_seconds);
  loaded.engine = std::make_unique<Engine>(config, std::move(runner), std::move(tokens), std::move(compiler),
                                           std::move(events), std::move(draft_runner));
  for (const auto& [name, path] : settings.adapters) loaded.engine->load_adapter(name, path);
  report_session_length(resolved, loaded.engine->config(), loaded.notes);
  return loaded;
}

}  // namespace turbomind
