// Reads a Triton request's tensors (model_repository/turbomind/config.pbtxt) into the engine's request.
//
// A field may come as a parameter of the request instead, as clients of Triton's vLLM backend send them: under the
// tensor's name or that backend's, as a number or as text; or in the JSON text of one parameter, sampling_parameters.
//
// Requests of LMDeploy's Triton clients up to 0.5.1 use other names for some of them; they are recognized by
// request_output_len.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache_control.h"
#include "engine/request.h"
#include "triton/handles.h"
#include "triton/model_memory.h"

namespace turbomind {

class RequestReader {
 public:
  // Copies every input. Throws Error naming the tensor that cannot be read.
  explicit RequestReader(TRITONBACKEND_Request* request);

  std::string id() const;
  // Of an LMDeploy client up to 0.5.1.
  bool is_legacy() const { return has("request_output_len"); }
  // The id of the request to cancel, if this asks for that.
  std::optional<std::string> stop_request_id() const;

  // Whether this asks what the engine's limits are.
  bool reads_limits() const { return has("limits"); }

  // Control request for LoRA adapters, if this is one.
  struct AdapterControl {
    std::string action;  // load, unload or list
    std::string name;
    std::string path;
    std::string note;
  };
  std::optional<AdapterControl> adapter_control() const;

  // Control request for the cache, if this is one; without a callback.
  std::optional<CacheControl> cache_control() const;
  // Control request for the model's sleep, if this is one.
  struct SleepControl {
    enum class Action : uint8_t { kReport, kSleep, kWake };
    Action action = Action::kReport;
    SleepLevel level = SleepLevel::kWeights;  // of kSleep
  };
  std::optional<SleepControl> sleep_control() const;
  std::string control_key() const;

  std::vector<int32_t> input_ids() const;
  // Rows of `width` numbers.
  std::vector<EmbeddingRange> embeddings(int width) const;
  GenerationParams params() const;
  std::optional<SessionParams> session() const;
  int priority() const;
  std::optional<Clock::time_point> deadline() const;
  // How long the model stays in memory after this request; none: as it does without.
  std::optional<std::chrono::duration<double>> keep_alive() const;

 private:
  struct Tensor {
    TRITONSERVER_DataType type;
    std::string bytes;
  };

  // A request parameter, as text: JSON where it was not a string.
  using Parameters = std::map<std::string, std::string, std::less<>>;

  bool has(std::string_view name) const { return tensors_.count(name) > 0 || parameter(name) != nullptr; }
  const std::string* parameter(std::string_view name) const;
  template <class T>
  std::vector<T> values(const char* name, TRITONSERVER_DataType type) const;
  template <class T>
  std::optional<T> scalar(const char* name, TRITONSERVER_DataType type) const;
  std::vector<std::string> strings(const char* name) const;
  std::vector<std::vector<int32_t>> legacy_words(const char* name) const;
  void read_parameters();
  void read_legacy(GenerationParams& params) const;
  bool flag(const char* name) const;

  void read(const char* name, int& field) const;
  void read(const char* name, std::optional<int>& field) const;
  void read(const char* name, float& field) const;
  void read(const char* name, bool& field) const;
  void read(const char* name, std::optional<uint64_t>& field) const;
  void read(const char* name, std::string& field) const;
  void read(const char* name, std::vector<std::string>& field) const;
  void read(const char* name, std::vector<int32_t>& field) const;
  void read(const char* name, std::vector<std::pair<int32_t, float>>& field) const;

  TRITONBACKEND_Request* request_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  Parameters parameters_;
};

}  // namespace turbomind
