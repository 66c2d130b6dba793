#include "model/adapters/adapter_weights.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/operators.h"

namespace turbomind {

namespace {

constexpr size_t kAlignment = 64;

// Where each row of a rank's part of a layer comes from.
std::vector<RowSources::Run> kept_runs(const AdaptedLayer& layer) {
  std::vector<RowSources::Run> kept;
  for (const Slice::Range& range : layer.outputs.ranges()) {
    int first = 0;
    for (const RowSources::Run& run : layer.rows.runs) {
      const int begin = std::max(range.begin, first);
      const int end = std::min(range.end, first + run.count);
      if (begin < end) kept.push_back({run.module, run.first + begin - first, end - begin});
      first += run.count;
    }
  }
  return kept;
}

std::string shape_text(const CheckpointTensor& tensor) {
  return "[" + std::to_string(tensor.shape[0]) + ", " + std::to_string(tensor.shape[1]) + "]";
}

template <class Pointer>
void add_base(Pointer& pointer, const std::byte* base) {
  pointer = reinterpret_cast<Pointer>(base + reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace

void AdapterWeights::upload(Operators& ops) {
  AlignedBuffer there;
  if (!ops.shares_host_memory()) there = ops.allocate(memory_.size(), MemoryUse::kWeights);
  const auto* base = there.size() > 0 ? there.as<std::byte>() : memory_.as<std::byte>();
  auto* layers = memory_.as<LoraWeight>();
  auto* parts = reinterpret_cast<LoraPart*>(layers + ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    add_base(layers[i].down, base);
    add_base(layers[i].parts, base);
  }
  for (int i = 0; i < parts_; ++i) add_base(parts[i].up, base);
  if (there.size() == 0) return;
  ops.upload(memory_.as<void>(), memory_.size(), there.as<void>());
  memory_ = std::move(there);
}

AdapterPlan::AdapterPlan(const std::string& directory, const std::vector<AdaptedLayer>& layers, DType dtype)
    : checkpoint_(AdapterCheckpoint::open(directory)), dtype_(dtype) {
  std::vector<std::string> used;
  for (const AdaptedLayer& layer : layers) add_parts(layer, used);
  reject_unused(used);
  assign_offsets();
}

void AdapterPlan::add_parts(const AdaptedLayer& shape, std::vector<std::string>& used) {
  Layer layer{&shape, {}, {}};
  std::vector<int> first_ranks(shape.rows.modules.size(), -1);
  std::vector<const AdapterModule*> modules;
  for (const RowSources::Module& found : shape.rows.modules) {
    const auto given = checkpoint_.modules().find(std::string(inner_layer(found.name)));
    const bool is_given = given != checkpoint_.modules().end();
    modules.push_back(is_given ? &given->second : nullptr);
    if (!is_given) continue;
    check_shapes(found, given->second, shape.inputs.whole());
    used.push_back(given->first);
  }
  int output = 0;
  int last_module = -1;
  for (const RowSources::Run& run : kept_runs(shape)) {
    const auto number = static_cast<size_t>(run.module);
    const AdapterModule* module = modules[number];
    if (module != nullptr) {
      int& first_rank = first_ranks[number];
      if (first_rank < 0) {
        first_rank = layer.rank;
        layer.downs.push_back({module, 0});
        layer.rank += module->rank;
      }
      if (run.module != last_module) {
        layer.parts.push_back({module, {}, {nullptr, output, 0, first_rank, module->rank, module->scale}, 0});
      }
      Part& part = layer.parts.back();
      for (int row = run.first; row < run.first + run.count; ++row) part.rows.push_back(row);
      part.view.out_features += run.count;
    }
    last_module = run.module;
    output += run.count;
  }
  part_count_ += static_cast<int>(layer.parts.size());
  layers_.push_back(std::move(layer));
}

void AdapterPlan::check_shapes(const RowSources::Module& found, const AdapterModule& module, int in_features) const {
  if (found.in_features != in_features) throw internal_error(found.name + " is not made of whole rows");
  if (module.down->shape[1] == found.in_features && module.up->shape[0] == found.out_features) return;
  throw invalid_argument("the adapter is of another base: " + found.name + " has lora_A " + shape_text(*module.down) +
                         " and lora_B " + shape_text(*module.up) + ", but the model's has " +
                         std::to_string(found.in_features) + " inputs and " + std::to_string(found.out_features) +
                         " outputs");
}

void AdapterPlan::reject_unused(const std::vector<std::string>& used) const {
  for (const auto& [layer, module] : checkpoint_.modules()) {
    if (std::find(used.begin(), used.end(), layer) != used.end()) continue;
    throw invalid_argument("the adapter adds to " + module.name +
                           ", which is no linear layer of this model that adapters can add to: those of attention, "
                           "recurrences and dense MLPs are, and on CPUs embeddings of tokens; experts, latent "
                           "attention, queries, keys and values of DeBERTa, and the output layer are not");
  }
}

size_t AdapterPlan::take(size_t elements) {
  const size_t offset = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  bytes_ = offset + elements * byte_size(dtype_);
  return offset;
}

void AdapterPlan::assign_offsets() {
  bytes_ = layers_.size() * sizeof(LoraWeight) + static_cast<size_t>(part_count_) * sizeof(LoraPart);
  for (Layer& layer : layers_) {
    const auto inputs = static_cast<size_t>(layer.shape->inputs.size());
    size_t next = take(static_cast<size_t>(layer.rank) * inputs);
    for (Down& down : layer.downs) {
      down.offset = next;
      next += static_cast<size_t>(down.module->rank) * inputs * byte_size(dtype_);
    }
    for (Part& part : layer.parts) part.offset = take(part.rows.size() * static_cast<size_t>(part.module->rank));
  }
}

template <class T>
void AdapterPlan::write(const Layer& layer, std::byte* memory) const {
  for (const Down& down : layer.downs) {
    copy_values(columns(*down.module->down, layer.shape->inputs), reinterpret_cast<T*>(memory + down.offset));
  }
  for (const Part& part : layer.parts) {
    const auto rank = static_cast<size_t>(part.module->rank);
    std::vector<T> up(static_cast<size_t>(part.module->up->shape[0]) * rank);
    copy_values(*part.module->up, up.data());
    T* transposed = reinterpret_cast<T*>(memory + part.offset);
    const size_t outputs = part.rows.size();
    for (size_t output = 0; output < outputs; ++output) {
      const T* row = up.data() + static_cast<size_t>(part.rows[output]) * rank;
      for (size_t k = 0; k < rank; ++k) transposed[k * outputs + output] = row[k];
    }
  }
}

std::unique_ptr<Adapter> AdapterPlan::read() const {
  AlignedBuffer memory(bytes_);
  auto* base = memory.as<std::byte>();
  auto* views = memory.as<LoraWeight>();
  auto* parts = reinterpret_cast<LoraPart*>(views + layers_.size());
  std::vector<int> ranks;
  const auto offset = [base](const void* address) {
    return reinterpret_cast<const void*>(static_cast<const std::byte*>(address) - base);
  };
  for (const Layer& layer : layers_) {
    LoraWeight& view = *views++;
    view = {};
    view.rank = layer.rank;
    view.format = format_of(dtype_);
    view.part_count = static_cast<int>(layer.parts.size());
    view.parts = static_cast<const LoraPart*>(offset(parts));
    view.down = layer.downs.empty() ? nullptr : offset(base + layer.downs.front().offset);
    for (const Part& part : layer.parts) {
      *parts = part.view;
      parts->up = offset(base + part.offset);
      ++parts;
    }
    ranks.push_back(layer.rank);
    if (dtype_ == DType::kFloat32) {
      write<float>(layer, base);
    } else if (dtype_ == DType::kFloat16) {
      write<half>(layer, base);
    } else {
      write<bf16>(layer, base);
    }
  }
  return std::make_unique<AdapterWeights>(std::move(memory), std::move(ranks), part_count_);
}

}  // namespace turbomind
