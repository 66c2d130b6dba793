#include "weights/adapter_checkpoint.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/digest/sha256.h"
#include "base/error.h"

namespace turbomind {

namespace {

constexpr std::string_view kPrefix = "base_model.model.";
// Ends of the names of tensors, of linear layers and of tables of embeddings.
constexpr std::string_view kDowns[] = {".lora_A.weight", ".lora_embedding_A"};
constexpr std::string_view kUps[] = {".lora_B.weight", ".lora_embedding_B"};
// The base's own weight, which PEFT saves alongside when it adapts embeddings or the output layer.
constexpr std::string_view kCopies[] = {".base_layer.weight"};
constexpr std::string_view kOuter[] = {"model.", "language_model.", "text_model.", "llm.",
                                       "bert.",  "distilbert.",     "mpnet.",      "roberta."};
constexpr int64_t kMaxRanks = 4096;
constexpr size_t kMaxNameLen = 512;  // of a layer; each of its ends is looked up

// Fields that say how the adapter was trained, or that are read below. Any other must be null, false or empty.
constexpr std::string_view kKnownFields[] = {"alpha_pattern",
                                             "arrow_config",
                                             "auto_mapping",
                                             "base_model_name_or_path",
                                             "bias",
                                             "eva_config",
                                             "exclude_modules",
                                             "inference_mode",
                                             "init_lora_weights",
                                             "layers_pattern",
                                             "layers_to_transform",
                                             "lora_alpha",
                                             "lora_dropout",
                                             "megatron_core",
                                             "modules_to_save",
                                             "parent_library",
                                             "peft_type",
                                             "peft_version",
                                             "qalora_group_size",
                                             "r",
                                             "rank_pattern",
                                             "revision",
                                             "runtime_config",
                                             "target_modules",
                                             "task_type",
                                             "use_dora",
                                             "use_rslora"};

// The name of a tensor up to one of `ends`; empty: it has none.
std::string_view before_end(std::string_view name, std::span<const std::string_view> ends) {
  for (const std::string_view end : ends) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  return {};
}

bool is_unset(const Json& value) {
  return value.is_null() || (value.is_bool() && !value.as_bool()) || (value.is_string() && value.as_string().empty()) ||
         (value.is_array() && value.as_array().empty()) || (value.is_object() && value.as_object().empty());
}

void reject_if_set(const Json& config, std::string_view field, const std::string& reason) {
  const Json* value = config.find(field);
  if (value == nullptr || is_unset(*value)) return;
  throw invalid_argument("adapter_config.json: " + std::string(field) + " is " + value->dump() + ": " + reason);
}

void reject_nonstandard_layers(const Json& config) {
  const Json* type = config.find("peft_type");
  if (type == nullptr || !type->is_string() || type->as_string() != "LORA") {
    throw invalid_argument("adapter_config.json: peft_type must be LORA, got " +
                           (type == nullptr ? std::string("nothing") : type->dump()));
  }
  reject_if_set(config, "modules_to_save",
                "whole layers cannot be served alongside the base's; train without them, or merge the adapter");
  reject_if_set(config, "use_dora", "DoRA is not supported; merge the adapter into the model");
  if (const Json* bias = config.find("bias"); bias != nullptr && bias->dump() != "\"none\"") {
    throw invalid_argument("adapter_config.json: bias is " + bias->dump() +
                           ": trained biases cannot be served alongside the base's; only none is supported");
  }
  if (const Json* start = config.find("init_lora_weights"); start != nullptr && start->is_string()) {
    for (const char* method : {"pissa", "olora", "corda", "loftq"}) {
      if (!start->as_string().starts_with(method)) continue;
      throw invalid_argument("adapter_config.json: init_lora_weights is " + start->dump() +
                             ": such an adapter changes the base's own weights; convert it to a plain one when saving");
    }
  }
  for (const auto& [field, value] : config.as_object()) {
    if (is_unset(value) || std::ranges::find(kKnownFields, field) != std::end(kKnownFields)) continue;
    throw invalid_argument("adapter_config.json: " + field + " is " + value.dump() +
                           ", which is not supported; merge the adapter into the model");
  }
}

// A number for each layer, such as rank_pattern's. A pattern is the name of a layer or, without ^, the end of one
// after a dot; as in PEFT the first one that matches counts. PEFT takes patterns for regular expressions, which an
// adapter could make to run for hours: here only what they hold as a rule is read, names.
class LayerNumbers {
 public:
  LayerNumbers(const Json& config, const char* patterns, const char* otherwise)
      : otherwise_(config.at(otherwise).as_double()) {
    const Json* given = config.find(patterns);
    if (given == nullptr) return;
    for (const auto& [pattern, number] : given->as_object()) {
      const bool is_whole = pattern.starts_with('^');
      const std::string name = name_in(pattern);
      if (name.empty()) {
        throw invalid_argument("adapter_config.json: " + std::string(patterns) + " has the pattern " +
                               quoted(pattern.substr(0, kMaxNameLen)) +
                               "; regular expressions are not supported, expected the name of a layer or its end, " +
                               "such as layers.0.self_attn.q_proj or q_proj");
      }
      (is_whole ? names_ : ends_).try_emplace(name, Entry{next_++, number.as_double()});
    }
  }

  double of(const std::string& layer) const {
    Entry found{next_, otherwise_};
    const auto match = [&found](const auto& entries, const std::string& name) {
      const auto entry = entries.find(name);
      if (entry != entries.end() && entry->second.order < found.order) found = entry->second;
    };
    match(names_, layer);
    match(ends_, layer);
    for (size_t dot = layer.find('.'); dot != std::string::npos; dot = layer.find('.', dot + 1)) {
      match(ends_, layer.substr(dot + 1));
    }
    return found.number;
  }

 private:
  struct Entry {
    size_t order;
    double number;
  };

  // Without anchors and escapes; empty: it is not a name.
  static std::string name_in(std::string_view pattern) {
    if (pattern.starts_with('^')) pattern.remove_prefix(1);
    if (pattern.ends_with('$')) pattern.remove_suffix(1);
    std::string name;
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] == '\\' && pattern.substr(i + 1).starts_with('.')) ++i;
      const auto letter = static_cast<unsigned char>(pattern[i]);
      if (std::isalnum(letter) == 0 && letter != '_' && letter != '-' && letter != '.') return "";
      name += pattern[i];
    }
    return name;
  }

  double otherwise_;
  size_t next_ = 0;
  std::unordered_map<std::string, Entry> names_;
  std::unordered_map<std::string, Entry> ends_;
};

std::string shape_text(int64_t rows, int64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

SafetensorsFile tensors_in(const std::string& directory) {
  const std::string path = directory + "/adapter_model.safetensors";
  if (!std::filesystem::exists(path) && std::filesystem::exists(directory + "/adapter_model.bin")) {
    throw invalid_argument(directory + " holds adapter_model.bin alone; save the adapter with safe_serialization=True");
  }
  return SafetensorsFile(path);
}

}  // namespace

std::string_view inner_layer(std::string_view name) {
  for (bool is_outer = true; is_outer;) {
    is_outer = false;
    for (const std::string_view outer : kOuter) {
      if (!name.starts_with(outer)) continue;
      name.remove_prefix(outer.size());
      is_outer = true;
    }
  }
  return name;
}

AdapterCheckpoint AdapterCheckpoint::open(const std::string& directory) {
  return {tensors_in(directory), Json::parse_file(directory + "/adapter_config.json")};
}

AdapterCheckpoint::AdapterCheckpoint(SafetensorsFile file, const Json& config) : file_(std::move(file)) {
  reject_nonstandard_layers(config);
  read_tensors();
  set_scales(config);
}

std::string AdapterCheckpoint::content() const {
  std::string text;
  const auto add = [&text](const CheckpointTensor& tensor) {
    const auto* const data = reinterpret_cast<const char*>(tensor.data);
    text += " " + tensor.dtype + " " + hex(sha256({data, tensor.bytes}));
  };
  for (const auto& [layer, module] : modules_) {
    text += layer + " " + std::to_string(module.rank) + " " + std::to_string(std::bit_cast<uint32_t>(module.scale));
    add(*module.down);
    add(*module.up);
    text += "\n";
  }
  return hex(sha256(text));
}

void AdapterCheckpoint::read_tensors() {
  std::map<std::string, const CheckpointTensor*> copies;
  for (const auto& [name, tensor] : file_.tensors()) {
    std::string_view text = before_end(name, kDowns);
    const bool is_down = !text.empty();
    if (!is_down) text = before_end(name, kUps);
    const bool is_copy = text.empty();
    if (is_copy) text = before_end(name, kCopies);
    if (text.size() <= kPrefix.size() || !text.starts_with(kPrefix)) {
      const bool is_whole = name.ends_with(".weight");
      throw invalid_argument(file_.mapped().path() + ": tensor " + name +
                             (is_whole ? " is a whole layer, as PEFT saves embeddings whose vocabulary was resized, "
                                       : " is no lora_A or lora_B of a linear layer or of embeddings, ") +
                             "and cannot be served alongside the base's; merge the adapter into the model");
    }
    const std::string layer(text.substr(kPrefix.size()));
    if (layer.size() > kMaxNameLen)
      throw invalid_argument(file_.mapped().path() + " has a tensor with too long a name");
    if (tensor.shape.size() != 2 || type_bytes(tensor.dtype) == 0) {
      throw invalid_argument(file_.mapped().path() + ": tensor " + name + " is no matrix of F32, BF16 or F16");
    }
    if (is_copy) {
      copies[layer] = &tensor;
      continue;
    }
    AdapterModule& module = modules_[std::string(inner_layer(layer))];
    if (module.name.empty()) module.name = layer;
    if (module.name != layer) {
      throw invalid_argument(file_.mapped().path() + " adapts both " + module.name + " and " + layer +
                             ", which is one layer");
    }
    (is_down ? module.down : module.up) = &tensor;
  }
  if (modules_.empty()) throw invalid_argument(file_.mapped().path() + " holds no tensor");
  for (auto& [key, module] : modules_) {
    const std::string& layer = module.name;
    if (module.down == nullptr || module.up == nullptr) {
      throw invalid_argument(file_.mapped().path() + ": " + layer + " has no " +
                             (module.down == nullptr ? "lora_A" : "lora_B"));
    }
    const int64_t rank = module.down->shape[0];
    if (rank != module.up->shape[1] || rank < 1 || rank > kMaxRanks) {
      throw invalid_argument(file_.mapped().path() + ": " + layer + " has " + std::to_string(rank) +
                             " rows of lora_A and " + std::to_string(module.up->shape[1]) +
                             " columns of lora_B; expected the same rank, 1 to " + std::to_string(kMaxRanks));
    }
    module.rank = static_cast<int>(rank);
  }
  check_copies(copies);
}

// A copy is not read: it is the base's, if it has the shape of the layer that is adapted.
void AdapterCheckpoint::check_copies(const std::map<std::string, const CheckpointTensor*>& copies) const {
  for (const auto& [layer, copy] : copies) {
    const auto found = modules_.find(std::string(inner_layer(layer)));
    if (found == modules_.end()) {
      throw invalid_argument(file_.mapped().path() + " holds the base's " + layer + ", but no lora_A or lora_B of it");
    }
    const int64_t inputs = found->second.down->shape[1];
    const int64_t outputs = found->second.up->shape[0];
    const int64_t rows = copy->shape[0];
    const int64_t columns = copy->shape[1];
    // Of a table of embeddings, the inputs are its rows.
    if ((rows == outputs && columns == inputs) || (rows == inputs && columns == outputs)) continue;
    throw invalid_argument(file_.mapped().path() + ": " + layer + ".base_layer.weight has the shape " +
                           shape_text(rows, columns) + ", but what is added to it " + shape_text(outputs, inputs));
  }
}

void AdapterCheckpoint::set_scales(const Json& config) {
  const Json* root = config.find("use_rslora");
  const bool divides_by_root = root != nullptr && root->as_bool();
  const LayerNumbers ranks(config, "rank_pattern", "r");
  const LayerNumbers alphas(config, "alpha_pattern", "lora_alpha");
  for (auto& [key, module] : modules_) {
    const std::string& layer = module.name;
    const double rank = ranks.of(layer);
    if (rank != module.rank) {
      throw invalid_argument("adapter_config.json gives " + layer + " a rank of " + std::to_string(rank) +
                             ", but its tensors have " + std::to_string(module.rank));
    }
    const double alpha = alphas.of(layer);
    const double scale = alpha / (divides_by_root ? std::sqrt(rank) : rank);
    if (!(std::abs(scale) <= std::numeric_limits<float>::max())) {
      throw invalid_argument("adapter_config.json gives " + layer + " a scale that is no number of 32 bits");
    }
    module.scale = static_cast<float>(scale);
  }
}

}  // namespace turbomind
