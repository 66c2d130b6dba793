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
#include "model/dense_mlp.h"
#include "model/expert_mlp.h"
#include "model/head/head_input.h"
#include "model/inputs/layer_inputs.h"
#include "model/inputs/streams.h"
#include "model/model_runner.h"
#include "model/recurrence/recurrent_mixer.h"
#include "model/spec/model_spec.h"
#include "model/weights.h"

namespace turbomind {

class NativeRunner final : public ModelRunner {
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
  void allocate_cache(const CacheShare& share) override;
  void move_pages(const std::vector<PageMove>& moves) override { cache_.move(*ops_, moves); }
  std::byte* cache_pages() const override { return cache_.pages(); }
  size_t prepare_decoding(const StepLimits& limits) override;
  void keep_prepared(size_t count) override;
  bool reserve(const TokenChoice& choice) override { return sampler_ && sampler_->reserve(choice); }
  std::unique_ptr<AdapterFile> open_adapter(const std::string& directory) const override;
  void place_adapter(int slot, std::unique_ptr<Adapter> adapter) override;
  void drop_adapter(int slot) override { adapters_.drop(slot); }
  void begin(const StepInput& input) override;
  StepOutput take() override;

 private:
  // Rows whose logits are computed: first those that tokens are chosen from, then those that were asked for.
  struct Outputs {
    int choices = 0;
    int rows = 0;
    int count() const { return choices + rows; }
  };

  // What the ranks do when they meet first, which is not to happen within a graph.
  void connect_ranks();
  int computed_rows(const DecodingShape& shape) const { return std::min(shape.rows, max_rows_); }
  // The operators of a step. `embedded` rows take the place of token embeddings.
  void run_rows(const StepContext& step, const StepInput& input, int embedded, bool looks, int outputs, int projected);
  // The same of a step that only decodes, of that shape, and whose rows belong to no sequence.
  void run_empty_rows(const DecodingShape& shape);
  // Of a step that fills images alone.
  void begin_without_rows();
  // Prepares what the step's operators read.
  Outputs stage(const StepInput& input);
  void stage_tokens(const StepInput& input);
  void stage_positions(const StepInput& input);
  void stage_token_types(const StepInput& input);
  // The vector of each text of the step, where all of its rows go into it.
  void pool_texts(const StepInput& input);
  Outputs stage_outputs(const StepInput& input);
  // Returns how many rows of the step take the place of token embeddings.
  int stage_embeddings(const StepInput& input);
  // What `count` such rows add after a layer.
  void add_deepstack(const StepContext& step, int layer, int count);
  void run_layers(const StepContext& step, int embedded, bool looks);
  void run_layer(const StepContext& step, int index);
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
  // The last norm of the first `count` output rows.
  void gather_outputs(int count);
  // Logits of output rows first, first + 1, ...
  void project(int first, int count);
  // The same for hidden states `rows`, of which each rank computes the logits of its part of the vocabulary.
  void project_together(const float* rows, int count);
  void sum_over_ranks(float* x, size_t count);
  // Chooses tokens and brings rows to the host; of the logits, the first `projected` are computed.
  void give_out(const Outputs& outputs, int projected);
  void bring_logits(int from, int count, int wanted);
  void bring(const float* from, int rows, int width, float* to);

  std::unique_ptr<Operators> ops_;
  ModelSpec spec_;  // of the shard
  Weights weights_;
  int max_rows_;
  int logit_rows_at_once_;
  int rank_;
  int vocab_part_;   // Shard's
  bool is_divided_;  // what a half of a layer makes is a part of a sum over ranks
  // In `prepare`, ranks do not meet: nobody looks at the result, and a rank that takes memory while another GPU waits
  // for it may wait for that GPU.
  bool is_warming_up_ = false;
  bool brings_output_;
  CacheMemory cache_;  // none where another runner has it
  SelfAttention attention_;
  std::optional<RecurrentMixer> recurrence_;
  std::optional<CrossLayers> cross_;
  std::optional<HeadInput> head_;
  std::optional<LayerInputs> layer_inputs_;
  std::optional<Streams> residual_streams_;
  DenseMlp mlp_;
  ExpertMlp expert_mlp_;
  AdapterTable adapters_;
  DType adapter_type_;

  Staged tokens_;                          // int32 [max_rows]
  Staged positions_;                       // int32 [max_rows]; empty without learned positions
  Staged token_types_;                     // int32 [max_rows]; empty without token types
  Staged outputs_;                         // int32 [max_rows]; the rows whose logits are computed
  Staged embeddings_;                      // float32 [1 + deepstack layers, rows, hidden_size], where it takes them
  Staged embedding_rows_;                  // int32 [max_rows]; their places in the step
  std::unique_ptr<TokenSampler> sampler_;  // null: the host chooses
  std::vector<int> embedded_rows_;         // of the step begun last
  std::vector<int> choice_of_span_;        // of the same
  std::vector<InFlightToken> in_flight_;   // of the step

  // Activations, float32, [max_rows, ...].
  AlignedBuffer hidden_;       // hidden_size; the residual stream
  AlignedBuffer normed_;       // hidden_size
  AlignedBuffer mlp_input_;    // hidden_size; of parallel blocks with a norm for each half
  AlignedBuffer branch_;       // hidden_size; where halves do not add directly
  AlignedBuffer experts_;      // hidden_size; what experts make alongside a dense MLP
  AlignedBuffer output_rows_;  // hidden_size; Outputs, gathered
  AlignedBuffer logits_;       // [logit_rows_at_once_, vocab_size]
  AlignedBuffer streams_;      // of output rows in front of the last norm, where a head continues with these
  std::vector<int> kept_layers_;
  AlignedBuffer kept_;                 // StepOutput::token_hidden, where it is asked for
  std::vector<DecodingShape> shapes_;  // that steps may be prepared for
  AlignedBuffer logit_parts_;          // [ranks, rows, vocab_part_], where the vocabulary is divided

  // Wanted rows in the host's memory, where the device has its own. Memory is taken only when touched.
  AlignedBuffer host_logits_;   // vocab_size
  AlignedBuffer host_rows_;     // hidden_size
  std::vector<float> vectors_;  // of a step's texts, [texts, hidden_size], where they are pooled here
  StepOutput output_;
};

}  // namespace turbomind
