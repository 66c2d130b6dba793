#include "engine/load_engine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "device/operators.h"
#include "engine/load_grammar.h"
#include "kernels/paged_attention.h"
#include "model/native_runner.h"
#include "model/parallel_runner.h"
#include "model/spec/long_context.h"

namespace turbomind {

namespace {

constexpr int kDefaultSessionLen = 8192;  // where the model allows it

// What suits a device where the user says nothing.
struct DeviceDefaults {
  int batch_size;
  int step_tokens;
  size_t cache_limit;  // bytes that a share of the free memory is taken up to
};
// A prompt chunk of 256 tokens keeps the pause of running answers short and costs a CPU no throughput; and a CPU shares
// its memory with everything else on the machine.
constexpr DeviceDefaults kCpuDefaults{64, 256, size_t{4} << 30};
constexpr DeviceDefaults kCudaDefaults{256, 8192, ~size_t{0}};

std::string device_of(const Json& settings) {
  const Json* given = settings.find("device");
  const std::string wanted = given != nullptr ? given->as_string() : "auto";
  return wanted == "auto" ? available_devices().back() : wanted;
}

int setting(const Json& settings, const char* key, int fallback) {
  const Json* value = settings.find(key);
  if (value == nullptr) return fallback;
  const int64_t number = value->as_int();
  if (number < 0 || number > (1 << 30)) {
    throw invalid_argument(std::string(key) + " must be a positive number, got " + std::to_string(number));
  }
  return static_cast<int>(number);
}

DType weight_type(const Json& settings, const ModelSpec& spec) {
  const Json* given = settings.find("dtype");
  const std::string wanted = given != nullptr ? given->as_string() : "auto";
  const std::string& name = wanted == "auto" ? spec.dtype : wanted;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  if (name == "float32") return DType::kFloat32;
  throw invalid_argument("dtype must be auto, float32, float16 or bfloat16, got " + wanted);
}

WeightOptions weight_options(const Json& settings, const ModelSpec& spec) {
  WeightOptions options;
  options.dtype = weight_type(settings, spec);
  options.bits = setting(settings, "weight_bits", 0);
  if (options.bits != 0 && options.bits != 8 && options.bits != 4) {
    throw invalid_argument("weight_bits must be 4 or 8, got " + std::to_string(options.bits));
  }
  return options;
}

void check_model_format(const Json& settings, const Checkpoint& checkpoint) {
  const Json* wanted = settings.find("model_format");
  if (wanted == nullptr || wanted->as_string() == checkpoint.weight_format()) return;
  throw invalid_argument("model_format is " + wanted->as_string() + ", but the checkpoint's weights are " +
                         checkpoint.weight_format() + "; leave model_format out or name that");
}

CacheType cache_type(const Json& settings, DType dtype) {
  const int policy = setting(settings, "quant_policy", 0);
  if (policy == 0) return dtype == DType::kFloat32 ? CacheType::kFloat32 : CacheType::kBFloat16;
  if (policy == 8) return CacheType::kInt8;
  if (policy != 4) throw invalid_argument("quant_policy must be 0, 4 or 8, got " + std::to_string(policy));
  return CacheType::kInt4;
}

LongContext long_context(const Json& settings) {
  LongContext result;
  if (const Json* factor = settings.find("rope_scaling_factor")) {
    result.rope_scaling_factor = static_cast<float>(factor->as_double());
  }
  if (const Json* logn = settings.find("use_logn_attn")) result.use_logn_attn = logn->as_bool();
  return result;
}

// The model whole, or spread over `tp` ranks.
std::unique_ptr<ModelRunner> make_runner(const ModelSpec& spec, const Json& settings, const std::string& device,
                                         const Checkpoint& checkpoint, int max_rows) {
  const WeightOptions options = weight_options(settings, spec);
  const CacheType cache = cache_type(settings, options.dtype);
  const int threads = setting(settings, "threads", 0);
  const int ranks = setting(settings, "tp", 1);
  if (ranks < 1) throw invalid_argument("tp must be >= 1, got 0");
  if (ranks == 1) {
    return std::make_unique<NativeRunner>(make_operators(device, threads), Shard::whole(spec), checkpoint, options,
                                          cache, max_rows, threads);
  }
  const int group = std::lcm(checkpoint.input_group(), options.bits != 0 ? options.group : 1);
  std::vector<Shard> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.push_back(Shard::of(spec, rank, ranks, group));
  const std::shared_ptr<RankGroup> devices = make_rank_group(device, ranks, threads);
  const int loading_threads = std::max(1, (threads > 0 ? threads : available_cpu_count()) / ranks);
  const auto make = [&](int rank) {
    return std::make_unique<NativeRunner>(devices->make_operators(rank), shards[static_cast<size_t>(rank)], checkpoint,
                                          options, cache, max_rows, loading_threads);
  };
  return std::make_unique<ParallelRunner>(devices, make, device == "cpu");
}

// cache_max_entry_count below 1 is a share of the free memory; from 1 on, a number of blocks.
int cache_block_count(const Json& settings, const EngineConfig& config, ModelRunner& runner, size_t limit) {
  const Json* given = settings.find("cache_max_entry_count");
  const double wanted = given != nullptr ? given->as_double() : 0.8;
  if (!(wanted > 0) || wanted > 1e9)
    throw invalid_argument("cache_max_entry_count must be > 0, got " + std::to_string(wanted));
  if (wanted >= 1) return static_cast<int>(wanted);
  const size_t block_bytes = runner.block_bytes(config.block_len);
  const auto share = static_cast<size_t>(wanted * static_cast<double>(runner.free_cache_memory()));
  const size_t affordable = std::min(share, limit) / block_bytes;
  const size_t useful = static_cast<size_t>(config.max_batch_size) *
                        ((static_cast<size_t>(config.session_len) + config.block_len - 1) / config.block_len);
  if (affordable == 0) {
    throw invalid_argument("not enough memory for the cache: one block takes " + std::to_string(block_bytes >> 20) +
                           " MiB, " + std::to_string(share >> 20) +
                           " MiB may be used; raise cache_max_entry_count or lower cache_block_seq_len");
  }
  return static_cast<int>(std::min(affordable, useful));
}

}  // namespace

LoadedEngine load_engine(const std::string& directory, const Json& settings) {
  ModelSpec spec = ModelSpec::from_file(directory + "/spec.json");
  extend_context(spec, long_context(settings));
  EngineConfig config;
  config.session_len = setting(settings, "session_len", std::min(spec.max_position_embeddings, kDefaultSessionLen));
  const std::string device = device_of(settings);
  const DeviceDefaults& defaults = device == "cuda" ? kCudaDefaults : kCpuDefaults;
  config.max_batch_size = setting(settings, "max_batch_size", defaults.batch_size);
  config.block_len = setting(settings, "cache_block_seq_len", 64);
  if (config.session_len < 2)
    throw invalid_argument("session_len must be >= 2, got " + std::to_string(config.session_len));
  if (config.max_batch_size < 1) throw invalid_argument("max_batch_size must be >= 1, got 0");
  if (config.block_len < 16 || config.block_len % 16 != 0 || kPartitionTokens % config.block_len != 0) {
    throw invalid_argument("cache_block_seq_len must be 16, 32, 64, 128, 256 or 512, got " +
                           std::to_string(config.block_len));
  }
  int step_tokens = setting(settings, "num_tokens_per_iter", 0);
  if (step_tokens == 0) step_tokens = std::min(setting(settings, "max_prefill_token_num", 8192), defaults.step_tokens);
  if (const int iterations = setting(settings, "max_prefill_iters", 1); iterations > 1) {
    step_tokens = std::max(step_tokens, (config.session_len + iterations - 1) / iterations);
  }
  // Leaves a quarter of a full step to prompts (engine/schedule/scheduler.h).
  config.max_step_tokens = std::max(step_tokens, (config.max_batch_size * 4 + 2) / 3);
  if (const Json* prefix_caching = settings.find("enable_prefix_caching"))
    config.enable_prefix_caching = prefix_caching->as_bool();
  config.session_idle_limit = std::chrono::seconds(setting(settings, "session_idle_seconds", 3600));
  config.max_waiting = setting(settings, "max_waiting", config.max_waiting);
  config.eos_token_ids = spec.eos_token_ids;
  config.checks_invariants = std::getenv("LMDEPLOY_CHECK_INVARIANTS") != nullptr;

  TokenTable tokens = TokenTable::from_file(directory + "/token_bytes.bin");
  const Checkpoint checkpoint(directory);
  check_model_format(settings, checkpoint);
  std::unique_ptr<ModelRunner> runner = make_runner(spec, settings, device, checkpoint, config.max_step_tokens);
  runner->prepare({config.max_batch_size, config.session_len, config.block_len});
  config.block_count = cache_block_count(settings, config, *runner, defaults.cache_limit);
  LoadedEngine loaded;
  auto compiler = load_grammar_compiler(tokens, spec.vocab_size, spec.eos_token_ids, loaded.no_grammar_reason);
  loaded.engine = std::make_unique<Engine>(config, std::move(runner), std::move(tokens), std::move(compiler));
  loaded.spec = std::move(spec);
  return loaded;
}

}  // namespace turbomind
