#include "triton/request_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <iterator>
#include <set>
#include <sstream>
#include <type_traits>

#include "base/json.h"

namespace turbomind {

namespace {

// Parameters of the vLLM backend that this engine does not support. Parameters unknown to both are Triton's
// own, or headers that it was asked to hand on.
const std::set<std::string, std::less<>> kNotSupported = {
    "best_of",        "detokenize",        "early_stopping",         "guided_decoding", "include_stop_str_in_output",
    "length_penalty", "logits_processors", "truncate_prompt_tokens", "use_beam_search"};

std::string our_name(std::string_view name) {
  for (const auto& [other_name, native_name] : kOtherNames) {
    if (other_name == name) return std::string(native_name);
  }
  return std::string(name);
}

std::string parameter_text(TRITONSERVER_ParameterType type, const void* value) {
  switch (type) {
    case TRITONSERVER_PARAMETER_STRING:
      return static_cast<const char*>(value);
    case TRITONSERVER_PARAMETER_INT:
      return std::to_string(*static_cast<const int64_t*>(value));
    case TRITONSERVER_PARAMETER_BOOL:
      return *static_cast<const bool*>(value) ? "true" : "false";
    case TRITONSERVER_PARAMETER_DOUBLE: {
      std::ostringstream text;
      text << std::setprecision(17) << *static_cast<const double*>(value);
      return text.str();
    }
    default:
      return "";
  }
}

[[noreturn]] void reject(std::string_view name, const char* expected, const std::string& given) {
  throw invalid_argument("the parameter " + std::string(name) + " must be " + expected + ", got " + given);
}

// The number a parameter's text is, whole for a T that is.
template <class T>
T number(std::string_view name, const std::string& text) {
  if constexpr (std::is_same_v<T, uint8_t>) {  // BOOL
    if (text != "true" && text != "false" && text != "True" && text != "False") reject(name, "true or false", text);
    return text == "true" || text == "True" ? 1 : 0;
  } else {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      reject(name, std::is_floating_point_v<T> ? "a number" : "a whole number that fits its tensor", text);
    }
    return value;
  }
}

// A JSON list, or text that stands for a list of itself.
Json::Array list(std::string_view name, const std::string& text) {
  const Json parsed = Json::parse(text);
  if (!parsed.is_array()) reject(name, "a JSON list", text);
  return parsed.as_array();
}

}  // namespace

RequestReader::RequestReader(TRITONBACKEND_Request* request) : request_(request) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    check(TRITONBACKEND_RequestInputByIndex(request, i, &input));
    const char* name = nullptr;
    Tensor tensor{};
    uint64_t bytes = 0;
    uint32_t buffers = 0;
    check(TRITONBACKEND_InputProperties(input, &name, &tensor.type, nullptr, nullptr, &bytes, &buffers));
    tensor.bytes.reserve(bytes);
    for (uint32_t b = 0; b < buffers; ++b) {
      const void* data = nullptr;
      uint64_t size = 0;
      TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
      int64_t memory_id = 0;
      check(TRITONBACKEND_InputBuffer(input, b, &data, &size, &memory, &memory_id));
      if (memory == TRITONSERVER_MEMORY_GPU) throw invalid_argument(std::string(name) + " must be in CPU memory");
      tensor.bytes.append(static_cast<const char*>(data), size);
    }
    tensors_.emplace(name, std::move(tensor));
  }
  read_parameters();
}

void RequestReader::read_parameters() {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestParameterCount(request_, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    const void* value = nullptr;
    check(TRITONBACKEND_RequestParameter(request_, i, &key, &type, &value));
    parameters_[our_name(key)] = parameter_text(type, value);
  }
  if (const auto all = parameters_.find("sampling_parameters"); all != parameters_.end()) {
    const Json given = Json::parse(all->second);
    for (const auto& [name, value] : given.as_object()) {
      if (!value.is_null()) parameters_[our_name(name)] = value.is_string() ? value.as_string() : value.dump();
    }
  }
  for (const auto& [name, value] : parameters_) {
    if (kNotSupported.count(name) == 0) continue;
    throw invalid_argument("the parameter " + name + " is not supported; leave it out");
  }
}

const std::string* RequestReader::parameter(std::string_view name) const {
  const auto it = parameters_.find(name);
  return it != parameters_.end() ? &it->second : nullptr;
}

std::string RequestReader::id() const {
  const char* id = nullptr;
  check(TRITONBACKEND_RequestId(request_, &id));
  return id != nullptr ? id : "";
}

template <class T>
std::vector<T> RequestReader::values(const char* name, TRITONSERVER_DataType type) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    std::vector<T> result;
    if (const std::string* text = parameter(name)) {
      if (text->empty() || text->front() != '[') return {number<T>(name, *text)};
      for (const Json& item : list(name, *text)) result.push_back(number<T>(name, item.dump()));
    }
    return result;
  }
  const Tensor& tensor = it->second;
  if (tensor.type != type || tensor.bytes.size() % sizeof(T) != 0) {
    throw invalid_argument(std::string(name) + " has the wrong datatype or size; see turbomind/config.pbtxt");
  }
  std::vector<T> result(tensor.bytes.size() / sizeof(T));
  if (!result.empty()) std::memcpy(result.data(), tensor.bytes.data(), tensor.bytes.size());
  return result;
}

template <class T>
std::optional<T> RequestReader::scalar(const char* name, TRITONSERVER_DataType type) const {
  if (!has(name)) return std::nullopt;
  const std::vector<T> all = values<T>(name, type);
  if (all.size() != 1)
    throw invalid_argument(std::string(name) + " must hold one value, got " + std::to_string(all.size()));
  return all[0];
}

// BYTES tensors: each element is a little-endian uint32 length and that many bytes. Those of a parameter come after
// them: preprocessing always sends the chat template's stop words.
std::vector<std::string> RequestReader::strings(const char* name) const {
  std::vector<std::string> result;
  if (const auto it = tensors_.find(name); it != tensors_.end()) {
    const std::string& bytes = it->second.bytes;
    for (size_t position = 0; position < bytes.size();) {
      uint32_t length = 0;
      if (it->second.type != TRITONSERVER_TYPE_BYTES || position + sizeof(length) > bytes.size()) {
        throw invalid_argument(std::string(name) + " is not a well-formed BYTES tensor");
      }
      std::memcpy(&length, bytes.data() + position, sizeof(length));
      position += sizeof(length);
      if (position + length > bytes.size())
        throw invalid_argument(std::string(name) + " is not a well-formed BYTES tensor");
      result.emplace_back(bytes, position, length);
      position += length;
    }
  }
  if (const std::string* text = parameter(name)) {
    if (text->empty() || text->front() != '[') {
      result.push_back(*text);
    } else {
      for (const Json& item : list(name, *text)) result.push_back(item.as_string());
    }
  }
  return result;
}

bool RequestReader::flag(const char* name) const {
  return scalar<int32_t>(name, TRITONSERVER_TYPE_INT32).value_or(0) != 0;
}

std::optional<std::string> RequestReader::stop_request_id() const {
  if (!flag("STOP") || is_legacy()) return std::nullopt;
  const std::vector<std::string> ids = strings("stop_request_id");
  if (ids.size() != 1 || ids[0].empty()) {
    if (has("session_id") || has("CORRID")) return std::nullopt;
    throw invalid_argument("STOP needs stop_request_id, session_id or CORRID: what to cancel");
  }
  return ids[0];
}

std::optional<RequestReader::AdapterControl> RequestReader::adapter_control() const {
  if (!has("lora_control")) return std::nullopt;
  AdapterControl control;
  read("lora_control", control.action);
  read("lora_name", control.name);
  read("lora_path", control.path);
  read("lora_note", control.note);
  const bool loads = control.action == "load";
  if (!loads && control.action != "unload" && control.action != "list") {
    throw invalid_argument("lora_control must be load, unload or list, got " + control.action);
  }
  if (control.action != "list" && control.name.empty()) throw invalid_argument("lora_control needs lora_name");
  if (loads && control.path.empty()) throw invalid_argument("lora_control load needs lora_path: the adapter's folder");
  return control;
}

std::optional<CacheControl> RequestReader::cache_control() const {
  using Action = CacheControl::Action;
  static const std::map<std::string, Action> actions = {{"report", Action::kReport},
                                                        {"drop_memory", Action::kDropMemory},
                                                        {"drop_files", Action::kDropFiles},
                                                        {"pin", Action::kPin},
                                                        {"unpin", Action::kUnpin}};
  if (!has("cache_control")) return std::nullopt;
  std::string named;
  read("cache_control", named);
  const auto action = actions.find(named);
  if (action == actions.end()) {
    throw invalid_argument("cache_control must be report, drop_memory, drop_files, pin or unpin, got " + named);
  }
  CacheControl control;
  control.action = action->second;
  if (control.action == Action::kPin || control.action == Action::kUnpin) control.tokens = input_ids();
  read("cache_salt", control.salt);
  read("lora_name", control.lora_name);
  return control;
}

std::optional<RequestReader::SleepControl> RequestReader::sleep_control() const {
  using Action = SleepControl::Action;
  static const std::map<std::string, Action> actions = {
      {"report", Action::kReport}, {"sleep", Action::kSleep}, {"wake", Action::kWake}};
  if (!has("sleep_control")) return std::nullopt;
  std::string named;
  read("sleep_control", named);
  const auto action = actions.find(named);
  if (action == actions.end()) throw invalid_argument("sleep_control must be report, sleep or wake, got " + named);
  int level = 1;
  read("sleep_level", level);
  if (level != 1 && level != 2) throw invalid_argument("sleep_level must be 1 or 2, got " + std::to_string(level));
  return SleepControl{action->second, level == 1 ? SleepLevel::kWeights : SleepLevel::kNothing};
}

std::string RequestReader::control_key() const {
  std::string key;
  read("control_key", key);
  return key;
}

std::vector<int32_t> RequestReader::input_ids() const {
  const std::vector<uint32_t> raw_ids = values<uint32_t>("input_ids", TRITONSERVER_TYPE_UINT32);
  std::vector<int32_t> ids(raw_ids.size());
  // Ids beyond int32 become negative and are refused with the other ids outside the vocabulary.
  std::transform(raw_ids.begin(), raw_ids.end(), ids.begin(), [](uint32_t id) { return static_cast<int32_t>(id); });
  if (const auto length = scalar<uint32_t>("input_lengths", TRITONSERVER_TYPE_UINT32)) {
    if (*length > ids.size()) {
      throw invalid_argument("input_lengths must be at most the length of input_ids, " + std::to_string(ids.size()) +
                             ", got " + std::to_string(*length));
    }
    ids.resize(*length);
  }
  return ids;
}

std::vector<EmbeddingRange> RequestReader::embeddings(int width) const {
  std::vector<EmbeddingRange> ranges;
  if (!has("embedding_ranges")) return ranges;
  const std::vector<int32_t> bounds = values<int32_t>("embedding_ranges", TRITONSERVER_TYPE_INT32);
  const std::vector<uint8_t> digests = values<uint8_t>("embedding_digests", TRITONSERVER_TYPE_UINT8);
  const std::vector<uint8_t> rows = values<uint8_t>("embeddings", TRITONSERVER_TYPE_UINT8);
  const std::vector<std::string> names = strings("embedding_dtype");
  const std::vector<int32_t> grids =
      has("embedding_grids") ? values<int32_t>("embedding_grids", TRITONSERVER_TYPE_INT32) : std::vector<int32_t>();
  const std::vector<float> frame_steps = has("embedding_frame_steps")
                                             ? values<float>("embedding_frame_steps", TRITONSERVER_TYPE_FP32)
                                             : std::vector<float>();
  const std::vector<int32_t> row_counts = has("embedding_row_counts")
                                              ? values<int32_t>("embedding_row_counts", TRITONSERVER_TYPE_INT32)
                                              : std::vector<int32_t>();
  const std::optional<DType> type = names.size() == 1 ? dtype_of(names[0]) : std::nullopt;
  if (!type) throw invalid_argument("embedding_dtype must be float32, bfloat16 or float16");
  const size_t row_bytes = static_cast<size_t>(width) * byte_size(*type);
  const std::byte* next = reinterpret_cast<const std::byte*>(rows.data());
  size_t left = rows.size() / row_bytes;
  for (size_t i = 0; i + 1 < bounds.size(); i += 2) {
    EmbeddingRange range;
    range.begin = bounds[i];
    range.count = bounds[i + 1];
    if (const size_t grid_at = i / 2 * 3; grid_at + 3 <= grids.size()) {
      range.grid = {grids[grid_at], grids[grid_at + 1], grids[grid_at + 2]};
      if (i / 2 < frame_steps.size()) range.grid.frame_step = frame_steps[i / 2];
    }
    const size_t digest_at = i / 2 * range.digest.size();
    const int32_t row_count = i / 2 < row_counts.size() ? row_counts[i / 2] : range.count;
    if (range.count < 1 || row_count < range.count || static_cast<size_t>(row_count) > left ||
        digest_at + range.digest.size() > digests.size()) {
      break;
    }
    std::copy_n(digests.begin() + static_cast<ptrdiff_t>(digest_at), range.digest.size(), range.digest.begin());
    const std::byte* end = next + static_cast<size_t>(row_count) * row_bytes;
    range.rows = std::make_shared<const EmbeddingRows>(EmbeddingRows{*type, width, {next, end}});
    next = end;
    left -= static_cast<size_t>(row_count);
    ranges.push_back(std::move(range));
  }
  if (ranges.size() * 2 != bounds.size() || left != 0 || ranges.size() * sizeof(ContentDigest) != digests.size()) {
    throw invalid_argument("embedding_ranges must be pairs of first token and count, with a row of " +
                           std::to_string(width) +
                           " numbers for each token in embeddings and 32 bytes for each pair in embedding_digests");
  }
  if (!row_counts.empty() && row_counts.size() != ranges.size()) {
    throw invalid_argument("embedding_row_counts must have a number for each of embedding_ranges");
  }
  if (!grids.empty() && grids.size() != ranges.size() * 3) {
    throw invalid_argument("embedding_grids must have frames, rows and columns for each of embedding_ranges");
  }
  if (!frame_steps.empty() && frame_steps.size() * 3 != grids.size()) {
    throw invalid_argument("embedding_frame_steps must have a number for each of embedding_grids");
  }
  return ranges;
}

GenerationParams RequestReader::params() const {
  GenerationParams params;
  params.stream = false;
  read("stream", params.stream);
  params.do_sample = std::any_of(std::begin(kSamplingFields), std::end(kSamplingFields),
                                 [this](std::string_view name) { return has(name); });
  visit_fields(params, [this](const char* name, auto& field, const Limits&) { read(name, field); });
  if (is_legacy()) read_legacy(params);
  return params;
}

void RequestReader::read(const char* name, int& field) const {
  if (const auto value = scalar<int32_t>(name, TRITONSERVER_TYPE_INT32)) field = *value;
}
void RequestReader::read(const char* name, std::optional<int>& field) const {
  if (const auto value = scalar<int32_t>(name, TRITONSERVER_TYPE_INT32)) field = *value;
}
void RequestReader::read(const char* name, float& field) const {
  if (const auto value = scalar<float>(name, TRITONSERVER_TYPE_FP32)) field = *value;
}
void RequestReader::read(const char* name, bool& field) const {
  if (const auto value = scalar<uint8_t>(name, TRITONSERVER_TYPE_BOOL)) field = *value != 0;
}
void RequestReader::read(const char* name, std::optional<uint64_t>& field) const {
  if (const auto value = scalar<uint64_t>(name, TRITONSERVER_TYPE_UINT64)) field = *value;
}
void RequestReader::read(const char* name, std::string& field) const {
  if (std::vector<std::string> all = strings(name); !all.empty()) field = std::move(all[0]);
}
void RequestReader::read(const char* name, std::vector<std::string>& field) const {
  field = strings(name);
  std::erase(field, "");  // callers of Triton's generate endpoint send "" for none
}
void RequestReader::read(const char* name, std::vector<int32_t>& field) const {
  field = values<int32_t>(name, TRITONSERVER_TYPE_INT32);
}

// Two tensors, or one parameter that is a JSON object.
void RequestReader::read(const char* name, std::vector<std::pair<int32_t, float>>& field) const {
  if (const std::string* text = parameter(name)) {
    const Json given = Json::parse(*text);
    for (const auto& [token, bias] : given.as_object()) {
      field.emplace_back(number<int32_t>(name, token), static_cast<float>(bias.as_double()));
    }
    return;
  }
  const std::string of_ids = std::string(name) + "_ids";
  const std::string of_values = std::string(name) + "_values";
  const std::vector<int32_t> ids = values<int32_t>(of_ids.c_str(), TRITONSERVER_TYPE_INT32);
  const std::vector<float> biases = values<float>(of_values.c_str(), TRITONSERVER_TYPE_FP32);
  if (ids.size() != biases.size()) throw invalid_argument(of_ids + " and " + of_values + " must be of the same length");
  for (size_t i = 0; i < ids.size(); ++i) field.emplace_back(ids[i], biases[i]);
}

// The older clients' names and defaults. They send single tokens as stop words, and the end-of-sequence token as a bad
// word to keep a response going.
void RequestReader::read_legacy(GenerationParams& params) const {
  const std::vector<uint32_t> lengths = values<uint32_t>("request_output_len", TRITONSERVER_TYPE_UINT32);
  if (lengths.size() != 1) throw invalid_argument("request_output_len must hold one value");
  params.max_new_tokens = static_cast<int>(std::min<uint32_t>(lengths[0], 1u << 30));
  params.stream = true;
  params.top_k = static_cast<int>(scalar<uint32_t>("runtime_top_k", TRITONSERVER_TYPE_UINT32).value_or(0));
  read("runtime_top_p", params.top_p);
  params.do_sample = params.top_k != 1;
  for (const std::vector<int32_t>& word : legacy_words("stop_words_list")) params.stop_token_ids.push_back(word.back());
  params.bad_tokens = legacy_words("bad_words_list");
}

// [2, M]: token ids of all words, then the end of each word; entries of -1 are padding.
std::vector<std::vector<int32_t>> RequestReader::legacy_words(const char* name) const {
  const std::vector<int32_t> flat = values<int32_t>(name, TRITONSERVER_TYPE_INT32);
  if (flat.size() % 2 != 0) throw invalid_argument(std::string(name) + " must have two rows");
  const auto count = static_cast<int32_t>(flat.size() / 2);
  std::vector<std::vector<int32_t>> words;
  int32_t begin = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t end = flat[static_cast<size_t>(count + i)];
    if (end < 0) break;
    if (end <= begin || end > count) throw invalid_argument(std::string(name) + " has offsets out of order");
    words.emplace_back(flat.begin() + begin, flat.begin() + end);
    begin = end;
  }
  return words;
}

std::optional<SessionParams> RequestReader::session() const {
  SessionParams session;
  if (has("CORRID")) {
    session.id = *scalar<uint64_t>("CORRID", TRITONSERVER_TYPE_UINT64);
    session.start = scalar<int32_t>("START", TRITONSERVER_TYPE_INT32).value_or(1) != 0;
    session.end = scalar<int32_t>("END", TRITONSERVER_TYPE_INT32).value_or(1) != 0;
  } else if (has("session_id")) {
    session.id = *scalar<uint64_t>("session_id", TRITONSERVER_TYPE_UINT64);
    read("sequence_start", session.start);
    read("sequence_end", session.end);
  } else {
    return std::nullopt;
  }
  session.stop = flag("STOP");
  read("step", session.step);
  return session;
}

int RequestReader::priority() const {
  return scalar<int32_t>("priority", TRITONSERVER_TYPE_INT32).value_or(0);
}

std::optional<std::chrono::duration<double>> RequestReader::keep_alive() const {
  const auto seconds = scalar<float>("keep_alive", TRITONSERVER_TYPE_FP32);
  if (!seconds) return std::nullopt;
  if (std::isnan(*seconds)) throw invalid_argument("keep_alive must be a number of seconds, got nan");
  return std::chrono::duration<double>(*seconds);
}

std::optional<Clock::time_point> RequestReader::deadline() const {
  std::optional<std::chrono::microseconds> limit;
  if (const auto timeout = scalar<int32_t>("timeout_ms", TRITONSERVER_TYPE_INT32)) {
    if (*timeout < 1) throw invalid_argument("timeout_ms must be >= 1, got " + std::to_string(*timeout));
    limit = std::chrono::milliseconds(*timeout);
  }
  uint64_t microseconds = 0;
  check(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request_, &microseconds));
  if (microseconds > 0) {
    // Longer ones than a clock can count are as good as none.
    constexpr std::chrono::microseconds kMaxTimeout = std::chrono::hours(24 * 365);
    const std::chrono::microseconds of_triton(std::min<uint64_t>(microseconds, kMaxTimeout.count()));
    limit = limit ? std::min(*limit, of_triton) : of_triton;
  }
  if (!limit) return std::nullopt;
  return Clock::now() + *limit;
}

}  // namespace turbomind
