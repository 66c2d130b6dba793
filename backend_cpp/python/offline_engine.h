// Python binding of the engine: submit, then poll for all outputs since the last poll.
#pragma once

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/load_engine.h"

namespace turbomind {

class OfflineEngine {
 public:
  // The last three: Programs.
  OfflineEngine(const std::string& directory, const std::string& settings_json, std::vector<std::string> worker,
                std::vector<std::string> publisher, std::vector<std::string> grammar);

  // Returns the request's number. `params` holds fields of GenerationConfig; session: (id, start, end, stop, step); and
  // embeddings, in place of those of some tokens: a list of (first token, rows, name of their type, 32 bytes of
  // digest), where rows is an array [count, hidden] of that type, or of 16-bit integers for bfloat16.
  RequestId submit(std::vector<int32_t> input_ids, const pybind11::dict& params);
  void cancel(RequestId request);
  // Low-rank adapters, which requests name with `lora_name`.
  void load_adapter(const std::string& name, const std::string& directory);
  void unload_adapter(const std::string& name);
  std::vector<std::string> adapters() const;
  // Outputs since the last call, as dicts (lmdeploy/turbomind/engine.py names the members); waits up to `timeout`
  // seconds for the first, without the interpreter lock. One poller at a time.
  pybind11::list poll(double timeout);
  pybind11::dict stats() const;
  // Cancels what is open and stops the engine. Outputs already made can still be polled.
  void close();

  // Sentences about settings that were not taken as they are.
  const std::vector<std::string>& notes() const { return notes_; }
  int session_len() const { return session_len_; }
  int vocab_size() const { return vocab_size_; }
  int hidden_size() const { return hidden_size_; }

 private:
  Engine& engine() const;  // throws Error(kUnavailable) after close

  std::mutex mu_;
  std::condition_variable ready_;
  std::vector<Output> outputs_;  // guarded by mu_
  bool is_closed_ = false;       // guarded by mu_; poll no longer waits
  RequestId next_id_ = 1;        // guarded by the interpreter lock
  std::vector<std::string> notes_;
  int session_len_ = 0;
  int vocab_size_ = 0;
  int hidden_size_ = 0;
  std::unique_ptr<Engine> engine_;
};

}  // namespace turbomind
