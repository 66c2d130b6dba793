// A low-rank adapter in the layout that kernels read (kernels/lora.h), for one rank's shard of the model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/lora.h"
#include "kernels/types.h"
#include "model/model_runner.h"
#include "model/weights.h"
#include "weights/adapter_checkpoint.h"

namespace turbomind {

// One block of memory: the layers, their parts, then A and B of each.
class AdapterWeights final : public Adapter {
 public:
  // In the host's memory; the pointers in it are offsets until `upload`.
  AdapterWeights(AlignedBuffer memory, std::vector<int> ranks, int parts)
      : memory_(std::move(memory)), ranks_(std::move(ranks)), parts_(parts) {}

  // Makes it usable where the operators compute.
  void upload(Operators& ops);
  // Of each adapted layer; 0: nothing.
  const std::vector<int>& ranks() const { return ranks_; }
  // The device's.
  const LoraWeight* layers() const { return memory_.as<LoraWeight>(); }

 private:
  AlignedBuffer memory_;
  std::vector<int> ranks_;
  int parts_;
};

// An adapter's directory, and where each of its numbers goes.
class AdapterPlan final : public AdapterFile {
 public:
  // `layers` must outlive it. Throws Error naming what does not fit the model.
  AdapterPlan(const std::string& directory, const std::vector<AdaptedLayer>& layers, DType dtype);

  size_t bytes() const override { return bytes_; }
  std::unique_ptr<Adapter> read() const override;
  std::string content() const override { return checkpoint_.content(); }

 private:
  struct Down {
    const AdapterModule* module;
    size_t offset;
  };
  struct Part {
    const AdapterModule* module;
    std::vector<int32_t> rows;  // of lora_B
    LoraPart view;
    size_t offset;
  };
  struct Layer {
    const AdaptedLayer* shape;
    std::vector<Down> downs;  // one after another
    std::vector<Part> parts;
    int rank = 0;
  };

  void add_parts(const AdaptedLayer& shape, std::vector<std::string>& used);
  void check_shapes(const RowSources::Module& found, const AdapterModule& module, int in_features) const;
  void reject_unused(const std::vector<std::string>& used) const;
  void assign_offsets();
  size_t take(size_t elements);
  template <class T>
  void write(const Layer& layer, std::byte* memory) const;

  AdapterCheckpoint checkpoint_;
  DType dtype_;
  std::vector<Layer> layers_;
  int part_count_ = 0;
  size_t bytes_ = 0;
};

}  // namespace turbomind
