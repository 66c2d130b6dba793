#include "python/offline_engine.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/engine_metrics.h"

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
    throw invalid_argument(std::string(key) +
                           " has the wrong type: " + std::string(py::str(py::type::of(py::object(params[key])))));
  }
}

RequestedLogits requested_logits(const py::dict& params, const char* key) {
  std::string requested;
  read(params, key, requested);
  if (requested.empty()) return RequestedLogits::kNone;
  if (requested == "generation") return RequestedLogits::kGeneration;
  if (requested == "all") return RequestedLogits::kAll;
  throw invalid_argument(std::string(key) + " must be generation or all, got " + requested);
}

// Calls hook(tokens, logits) with NumPy views; the logits are changed in place. The Python object is released under the
// interpreter lock, whichever thread drops it last.
LogitsHook make_hook(const py::object& callable) {
  const std::shared_ptr<py::object> hook(new py::object(callable), [](py::object* object) {
    const py::gil_scoped_acquire locked;
    delete object;
  });
  return [hook](const std::vector<int32_t>& tokens, float* logits, int vocab_size) {
    const py::gil_scoped_acquire locked;
    try {
      const py::capsule borrowed(logits, [](void*) {});
      (*hook)(py::array_t<int32_t>(static_cast<py::ssize_t>(tokens.size()), tokens.data()),
              py::array_t<float>(vocab_size, logits, borrowed));
    } catch (py::error_already_set& error) {
      // Its message is made here: the exception object may only be touched under the lock.
      throw invalid_argument(std::string("logits_processors failed: ") + error.what());
    }
  };
}

GenerationParams read_params(const py::dict& params) {
  GenerationParams result;
  visit_fields(result, [&](const char* name, auto& field, const Limits&) { read(params, name, field); });
  if (params.contains("logits_hook")) result.logits_hook = make_hook(params["logits_hook"]);
  read(params, "stream", result.stream);
  result.logits = requested_logits(params, "output_logits");
  result.hidden_states = requested_logits(params, "output_last_hidden_state");
  read(params, "scores_prompt", result.scores_prompt);
  return result;
}

std::optional<SessionParams> read_session(const py::dict& params) {
  if (!params.contains("session") || params["session"].is_none()) return std::nullopt;
  const auto [id, start, end, stop, step] = params["session"].cast<std::tuple<uint64_t, bool, bool, bool, int>>();
  return SessionParams{id, start, end, stop, step};
}

EmbeddingRange read_embedding(const py::handle& given) {
  using Given = std::tuple<int, int, py::array, std::string, std::string, std::array<int, 3>, float>;
  const auto [begin, count, rows, type, digest, grid, frame_step] = given.cast<Given>();
  EmbeddingRange range;
  const py::array array = py::array::ensure(rows, py::array::c_style);
  const std::optional<DType> dtype = dtype_of(type);
  if (!array || array.ndim() != 2 || !dtype || static_cast<size_t>(array.itemsize()) != byte_size(*dtype) ||
      digest.size() != range.digest.size()) {
    throw invalid_argument(
        "embeddings must be rows [count, hidden] of float32, bfloat16 or float16, with a digest of " +
        std::to_string(range.digest.size()) + " bytes");
  }
  range.begin = begin;
  range.count = count;
  range.grid = {grid[0], grid[1], grid[2], frame_step};
  std::copy_n(digest.begin(), range.digest.size(), range.digest.begin());
  const auto* bytes = static_cast<const std::byte*>(array.data());
  range.rows = std::make_shared<const EmbeddingRows>(
      EmbeddingRows{*dtype, static_cast<int>(array.shape(1)), std::vector<std::byte>(bytes, bytes + array.nbytes())});
  return range;
}

std::vector<EmbeddingRange> read_embeddings(const py::dict& params) {
  std::vector<EmbeddingRange> ranges;
  if (!params.contains("embeddings")) return ranges;
  for (const py::handle given : params["embeddings"]) ranges.push_back(read_embedding(given));
  return ranges;
}

// Errors can quote bytes of a caller that are no UTF-8; one such must not cost the others their outputs.
py::str text(const std::string& bytes) {
  PyObject* decoded = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

// A float32 array [rows, width] that owns its memory, or None.
py::object matrix(std::vector<float>&& values, int width) {
  if (values.empty()) return py::none();
  auto* owner = new std::vector<float>(std::move(values));
  const py::capsule free_it(owner, [](void* memory) { delete static_cast<std::vector<float>*>(memory); });
  const auto rows = static_cast<py::ssize_t>(owner->size()) / width;
  return py::array_t<float>({rows, static_cast<py::ssize_t>(width)}, owner->data(), free_it);
}

}  // namespace

OfflineEngine::OfflineEngine(const std::string& directory, const std::string& settings_json,
                             std::vector<std::string> worker, std::vector<std::string> publisher,
                             std::vector<std::string> grammar) {
  EngineSettings settings;
  read_settings(Json::parse(settings_json), settings);
  LoadedEngine loaded =
      load_engine(directory, settings, {std::move(worker), std::move(publisher), std::move(grammar), nullptr});
  engine_ = std::move(loaded.engine);
  notes_ = std::move(loaded.notes);
  session_len_ = engine_->config().session_len;
  vocab_size_ = engine_->vocab_size();
  hidden_size_ = engine_->hidden_size();
}

Engine& OfflineEngine::engine() const {
  if (!engine_) throw Error(ErrorCode::kUnavailable, "the engine is closed");
  return *engine_;
}

RequestId OfflineEngine::submit(std::vector<int32_t> input_ids, const py::dict& params) {
  Request request;
  request.id = next_id_++;
  request.input_ids = std::move(input_ids);
  request.embeddings = read_embeddings(params);
  request.params = read_params(params);
  request.session = read_session(params);
  request.on_output = [this](Output&& output) {
    {
      const std::lock_guard lock(mu_);
      outputs_.push_back(std::move(output));
    }
    ready_.notify_one();
  };
  const RequestId id = request.id;
  engine().submit(std::move(request));
  return id;
}

void OfflineEngine::cancel(RequestId request) {
  engine().cancel(request);
}

void OfflineEngine::load_adapter(const std::string& name, const std::string& directory) {
  const py::gil_scoped_release unlocked;
  engine().load_adapter(name, directory);
}

void OfflineEngine::unload_adapter(const std::string& name) {
  const py::gil_scoped_release unlocked;
  engine().unload_adapter(name);
}

std::vector<std::string> OfflineEngine::adapters() const {
  std::vector<std::string> names;
  for (AdapterInfo& adapter : engine().adapters()) names.push_back(std::move(adapter.name));
  return names;
}

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
    py::dict item;
    item["request"] = output.request;
    item["index"] = output.index;
    item["text"] = text(output.text);
    item["token_ids"] = output.token_ids;
    item["finish_reason"] = finish_reason_name(output.finish);
    item["is_final"] = output.is_final;
    item["input_token_len"] = output.input_token_len;
    item["history_token_len"] = output.history_token_len;
    item["generate_token_len"] = output.generate_token_len;
    py::list logprobs;
    for (const TokenLogprobs& entry : output.logprobs) logprobs.append(py::make_tuple(entry.chosen, entry.top));
    item["logprobs"] = std::move(logprobs);
    item["logits"] = matrix(std::move(output.logits), vocab_size_);
    item["last_hidden_state"] = matrix(std::move(output.hidden_states), hidden_size_);
    item["embedding"] = matrix(std::move(output.embedding), hidden_size_);
    item["score"] = py::make_tuple(output.score, output.scored_tokens);
    item["error"] = text(output.error);
    item["is_bad_request"] = output.error_code != ErrorCode::kInternal && output.error_code != ErrorCode::kUnavailable;
    result.append(std::move(item));
  }
  return result;
}

py::dict OfflineEngine::stats() const {
  const EngineStats stats = engine().stats();
  py::dict result;
  for (const MetricSpec& metric : kEngineMetrics) {
    result[metric.name + std::string_view("turbomind_").size()] = metric.read(stats);
  }
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
