#include "python/offline_engine.h"

#include <pybind11/stl.h>

#include <chrono>

#include "base/error.h"

namespace py = pybind11;

namespace turbomind {

namespace {

// Reads params[key] into `field`; keeps the default when it is missing or None.
template <class T>
void read(const py::dict& params, const char* key, T& field) {
  if (!params.contains(key) || params[key].is_none()) return;
  try {
    field = params[key].cast<T>();
  } catch (const py::cast_error&) {
    throw invalid_argument(std::string(key) + " has the wrong type: " + std::string(py::str(py::type::of(py::object(params[key])))));
  }
}

GenerationParams read_params(const py::dict& params) {
  GenerationParams result;
  read(params, "max_new_tokens", result.max_new_tokens);
  read(params, "min_new_tokens", result.min_new_tokens);
  read(params, "do_sample", result.do_sample);
  read(params, "temperature", result.temperature);
  read(params, "top_p", result.top_p);
  read(params, "top_k", result.top_k);
  read(params, "repetition_penalty", result.repetition_penalty);
  if (params.contains("random_seed") && !params["random_seed"].is_none()) result.random_seed = params["random_seed"].cast<uint64_t>();
  read(params, "ignore_eos", result.ignore_eos);
  read(params, "stop_words", result.stop_words);
  read(params, "stop_token_ids", result.stop_token_ids);
  read(params, "skip_special_tokens", result.skip_special_tokens);
  read(params, "stream", result.stream);
  return result;
}

}  // namespace

OfflineEngine::OfflineEngine(const std::string& directory, const std::string& settings_json) {
  LoadedEngine loaded = load_engine(directory, Json::parse(settings_json));
  engine_ = std::move(loaded.engine);
  session_len_ = engine_->config().session_len;
  vocab_size_ = engine_->vocab_size();
}

Engine& OfflineEngine::engine() const {
  if (!engine_) throw Error(ErrorCode::kUnavailable, "the engine is closed");
  return *engine_;
}

RequestId OfflineEngine::submit(std::vector<int32_t> input_ids, const py::dict& params) {
  const RequestId id = next_id_++;
  Request request{id, std::move(input_ids), read_params(params), [this](Output&& output) {
                    {
                      const std::lock_guard lock(mu_);
                      outputs_.push_back(std::move(output));
                    }
                    ready_.notify_one();
                  }};
  engine().submit(std::move(request));
  return id;
}

void OfflineEngine::cancel(RequestId request) { engine().cancel(request); }

py::list OfflineEngine::poll(double timeout) {
  std::vector<Output> outputs;
  {
    const py::gil_scoped_release unlocked;
    std::unique_lock lock(mu_);
    ready_.wait_for(lock, std::chrono::duration<double>(timeout), [this] { return is_closed_ || !outputs_.empty(); });
    outputs.swap(outputs_);
  }
  py::list result;
  for (Output& output : outputs) {
    result.append(py::make_tuple(output.request, output.text, output.token_ids, finish_reason_name(output.finish),
                                 output.input_token_len, output.generate_token_len, output.error));
  }
  return result;
}

py::dict OfflineEngine::stats() const {
  const EngineStats stats = engine().stats();
  py::dict result;
  result["requests_running"] = stats.running;
  result["requests_waiting"] = stats.waiting;
  result["cache_blocks_total"] = stats.blocks_total;
  result["cache_blocks_used"] = stats.blocks_used;
  result["cache_blocks_free"] = stats.blocks_total - stats.blocks_used;
  result["requests_completed_total"] = stats.completed;
  result["requests_cancelled_total"] = stats.cancelled;
  result["requests_failed_total"] = stats.failed;
  result["tokens_in_total"] = stats.tokens_in;
  result["tokens_out_total"] = stats.tokens_out;
  result["preemptions_total"] = stats.preemptions;
  result["steps_total"] = stats.steps;
  result["step_seconds_total"] = stats.step_seconds;
  result["forward_seconds_total"] = stats.forward_seconds;
  return result;
}

void OfflineEngine::close() {
  const py::gil_scoped_release unlocked;
  engine_.reset();
  {
    const std::lock_guard lock(mu_);
    is_closed_ = true;
  }
  ready_.notify_all();
}

}  // namespace turbomind
