// The parametric decoder: runs a ModelSpec on the kernels.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "device/operators.h"
#include "model/adapters/adapter_table.h"
#include "model/attention/cross_layers.h"
#include "model/attention/self_attention.h"
#include "model/cache_memory.h"
#include "model/head_input.h"
#include "model/layer_inputs.h"
#include "model/mlp.h"
#include "model/model_runner.h"
#include "model/recurrence/recurrent_mixer.h"
#include "model/spec/model_spec.h"
#include "model/step/image_rows.h"
#include "model/step/output_rows.h"
#include "model/step/step_rows.h"
#include "model/streams.h"
#include "model/weights.h"

namespace turbomind {

class NativeRunner final : public ModelRunner, public AdapterSlots {
 public:
  // Runs a shard: the whole model, or a rank of it alongside others (model/parallel_runner.h), of which the first one
  // alone brings an output. `max_rows` bounds the rows of one step. `threads` load the weights; 0: all CPUs.
  NativeRunner(std::unique_ptr<Operators> ops, const Shard& shard, const Checkpoint& checkpoint,
               const WeightOptions& options, CacheType cache_type, int max_rows, int threads);

  std::vector<CacheGroup> cache_groups(const StepLimits& limits) const override;
  // Runs a step of most rows where the device has its own memory.
  void prepare(const StepLimits& limits) override;
  size_t free_cache_memory() override { return ops_->free_memory(); }
  int cache_variant(int prompt_len) const override { return attention_.cache_variant(prompt_len); }
  void keep_hidden(const std::vector<int>& layers) override;
  void lower_priority() override { ops_->lower_priority(); }
  std::byte* allocate_cache(const CacheShare& share) override;
  void move_pages(const std::vector<PageMove>& moves) override { cache_.move(*ops_, moves); }
  std::unique_ptr<Operators> operators_alongside() override { return ops_->make_alongside(); }
  size_t kept_page_bytes() const override { return cache_.page_bytes(); }
  void read_pages(std::span<const int32_t> pages, std::byte* to) override { cache_.read(*ops_, pages, to); }
  void write_pages(std::span<const int32_t> pages, const std::byte* from) override { cache_.write(*ops_, pages, from); }
  size_t prepare_decoding(const StepLimits& limits) override;
  void keep_prepared(size_t count) override;
  bool reserve(const TokenChoice& choice) override { return outputs_.reserve(choice); }
  std::unique_ptr<AdapterFile> open_adapter(const std::string& directory) const override;
  void place_adapter(int slot, std::unique_ptr<Adapter> adapter) override;
  void drop_adapter(int slot) override { adapters_.drop(slot); }
  void begin(const StepInput& input) override;
  StepOutput take() override;

 private:
  // What the ranks do when they meet first, which is not to happen within a graph.
  void connect_ranks();
  int computed_rows(const DecodingShape& shape) const { return std::min(shape.rows, max_rows_); }
  // The operators of a step. `embedded` rows take the place of token embeddings; of the `wanted` rows, logits of the
  // first `projected` are computed.
  void run_rows(const StepContext& step, const StepInput& input, int embedded, bool looks, int wanted, int projected);
  // The same of a step that only decodes, of that shape, and whose rows belong to no sequence.
  void run_empty_rows(const DecodingShape& shape);
  // The MLP of the last layer runs for the first `last_rows` wanted rows alone, where these are not all.
  void run_layers(const StepContext& step, int embedded, bool looks, int last_rows);
  void run_layer(const StepContext& step, int index, int mlp_rows);
  bool can_drop_rows(const StepContext& step) const;
  void keep_wanted_rows(int count);
  // Hands out the hidden states in front of a layer, or after the last, where they are asked for.
  void keep_stream(const StepContext& step, int layer);
  bool meets_ranks() const { return is_divided_ && !is_warming_up_; }
  bool adds_directly(const BlockSpec& block) const;
  // Adds what a half of the layer made, or both, in branch_, to the residual stream. `is_summed`: over ranks already.
  void add_branch(const StepContext& step, const BlockSpec& block, const NormStorage& output_norm,
                  bool is_summed = false);
  // The MLP half of a layer that has experts alongside a dense MLP: what both make, in branch_.
  void run_mlp_and_experts(const StepContext& step, const LayerWeights& layer, const LinearInput& mlp_input);
  // What a layer does after its halves.
  void finish_layer(const StepContext& step, int index, const LayerWeights& layer);
  // Brings the hidden states of a step's rows to the host, where they are asked for.
  void bring_kept(int rows);
  void sum_over_ranks(float* x, size_t count);

  std::unique_ptr<Operators> ops_;
  ModelSpec spec_;  // of the shard
  Weights weights_;
  int max_rows_;
  bool is_divided_;  // what a half of a layer makes is a part of a sum over ranks
  // In `prepare`, ranks do not meet: nobody looks at the result, and a rank that takes memory while another GPU waits
  // for it may wait for that GPU.
  bool is_warming_up_ = false;
  bool brings_output_;
  bool keeps_rows_ = false;  // hidden states of all rows are asked for, of the rank that brings the output
  CacheMemory cache_;        // none where another runner has it
  SelfAttention attention_;
  std::optional<RecurrentMixer> recurrence_;
  std::optional<CrossLayers> cross_;
  std::optional<ImageRows> image_rows_;  // where they have weights of their own
  std::optional<HeadInput> head_;
  std::optional<LayerInputs> layer_inputs_;
  std::optional<Streams> residual_streams_;
  DenseMlp mlp_;
  ExpertMlp expert_mlp_;
  AdapterTable adapters_;
  DType adapter_type_;

  StepRows rows_;
  OutputRows outputs_;

  // Activations, float32, [max_rows, ...].
  AlignedBuffer hidden_;     // hidden_size; the residual stream
  AlignedBuffer normed_;     // hidden_size
  AlignedBuffer mlp_input_;  // hidden_size; of parallel blocks with a norm for each half, and wanted rows
  AlignedBuffer branch_;     // hidden_size; where halves do not add directly
  AlignedBuffer experts_;    // hidden_size; what experts make alongside a dense MLP
  std::vector<int> kept_layers_;
  AlignedBuffer kept_;                 // StepOutput::token_hidden, where it is asked for
  AlignedBuffer host_kept_;            // the same in the host's memory, where the device has its own
  std::vector<DecodingShape> shapes_;  // that steps may be prepared for
};

}  // namespace turbomind
