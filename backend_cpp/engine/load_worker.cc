#include "engine/load_worker.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "model/inputs/step_embeddings.h"
#include "model/worker/worker_runner.h"

namespace turbomind {

namespace {

const char kFile[] = "/worker.json";

void refuse(bool is_set, const std::string& name, const std::string& reason) {
  if (is_set) throw invalid_argument("the PyTorch engine has no " + name + ": " + reason);
}

}  // namespace

void check_model_format(const EngineSettings& settings, const std::string& found) {
  if (settings.model_format.empty() || settings.model_format == found) return;
  throw invalid_argument("model_format is " + settings.model_format + ", but the checkpoint's weights are " + found +
                         "; leave model_format out or name that");
}

bool has_worker(const std::string& directory) {
  return std::filesystem::exists(directory + kFile);
}

std::unique_ptr<ModelRunner> make_worker_runner(const std::string& directory, const ModelSpec& spec,
                                                const EngineSettings& settings, int max_rows,
                                                const StepLimits& limits) {
  refuse(settings.weight_bits != 0, "weight_bits", "quantize the checkpoint, or use the TurboMind engine");
  refuse(settings.rope_scaling_factor != 0, "rope_scaling_factor", "say it in the checkpoint's config.json");
  refuse(settings.use_logn_attn, "use_logn_attn", "only models of the TurboMind engine were trained with it");
  const Json worker = Json::parse_file(directory + kFile);
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

}  // namespace turbomind
