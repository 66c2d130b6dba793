// A low-rank adapter as PEFT saves one: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "weights/checkpoint.h"

namespace turbomind {

// Low-rank update of one layer of the model: scale up down. Of a table of embeddings, whose inputs are its rows,
// the tensors are called lora_embedding_A and lora_embedding_B.
struct AdapterModule {
  std::string name;                        // of the layer, as the adapter has it
  const CheckpointTensor* down = nullptr;  // lora_A [rank, in_features]
  const CheckpointTensor* up = nullptr;    // lora_B [out_features, rank]
  int rank = 0;
  float scale = 0;
};

// A layer's name without the models around it (`model.`, `language_model.`): these differ between files of different
// ages and the model in memory, whose names PEFT saves.
std::string_view inner_layer(std::string_view name);

class AdapterCheckpoint {
 public:
  // Throws Error naming the fault of the directory.
  static AdapterCheckpoint open(const std::string& directory);
  // Throws Error naming the field or tensor that no plain low-rank adapter has. `config`: adapter_config.json.
  AdapterCheckpoint(SafetensorsFile file, const Json& config);

  // By the layer's `inner_layer`. Valid as long as this lives.
  const std::map<std::string, AdapterModule>& modules() const { return modules_; }
  // A digest of all of them: layers, scales and numbers.
  std::string content() const;

 private:
  void read_tensors();
  void check_copies(const std::map<std::string, const CheckpointTensor*>& copies) const;
  void set_scales(const Json& config);

  SafetensorsFile file_;
  std::map<std::string, AdapterModule> modules_;
};

}  // namespace turbomind
