// The parametric decoder: runs a ModelSpec on the kernels.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/operators.h"
#include "model/adapters/adapter_table.h"
#include "model/attention/compressed_attention.h"
#include "model/attention/cross_layers.h"
#include "model/attention/self_attention.h"
#include "model/cache_memory.h"
#include "model/head_input.h"
#include "model/layer_inputs.h"
#include "model/mlp.h"
#include "model/model_runner.h"
#include "model/ngrams.h"
#include "model/recurrence/recurrent_mixer.h"
#include "model/spec/model_spec.h"
#include "model/step/image_tokens.h"
#include "model/step/output_stage.h"
#include "model/step/program.h"
#include "model/step/step_tokens.h"
#include "model/streams.h"
#include "model/weights.h"

namespace turbomind {

class NativeRunner final : public ModelRunner, public AdapterSlots {
 public:
  // Runs a shard: the whole model, or a rank of it alongside others (model/parallel_runner.h), of which the first one
  // alone brings an output. `max_tokens` bounds the rows of one step. `threads` load the weights; 0: all CPUs.
  NativeRunner(std::unique_ptr<Operators> ops, const Shard& shard, const Checkpoint& checkpoint,
               const WeightOptions& options, CacheType cache_type, int max_tokens, int threads);

  // The program (model/step/program.h) of a spec.json, a line for each operation. Reads no weights.
  static std::string program_text(const std::string& spec_file);
  // The cache groups of a model that is not loaded.
  static std::vector<CacheGroup> cache_groups_of(const ModelSpec& spec, CacheType cache_type, const StepLimits& limits);
  // The memory of its weights.
  static size_t weight_bytes_of(const Shard& shard, const Checkpoint& checkpoint, WeightOptions options);

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
  void release_pages() override { cache_.release(*ops_); }
  size_t weight_bytes() const override { return weight_bytes_; }
  size_t prepare_decoding(const StepLimits& limits) override;
  void keep_prepared(size_t count) override;
  bool reserve(const SamplingMetadata& choice) override { return outputs_.reserve(choice); }
  std::unique_ptr<AdapterFile> open_adapter(const std::string& directory) const override;
  void set_adapter(int slot, std::unique_ptr<Adapter> adapter) override;
  void drop_adapter(int slot) override { adapters_.drop(slot); }
  void launch(const StepInput& input) override;
  StepOutput collect() override;

 private:
  NativeRunner(std::unique_ptr<Operators>&& ops, const Shard& shard, Weights weights, DType adapter_type,
               CacheType cache_type, int max_tokens);
  // Without weights.
  NativeRunner(const ModelSpec& spec, CacheType cache_type);
  // Uploads the inputs of the step's operations.
  ModelStep stage(const StepInput& input, LogitRows& logit_rows);
  // Whether every sequence decodes one token; `embedded`: rows in place of token embeddings.
  bool decodes(const StepInput& input, int embedded) const;
  // First barrier of the ranks, outside of a graph.
  void connect_ranks();
  int computed_tokens(const DecodingShape& shape) const { return std::min(shape.rows, max_tokens_); }
  // Runs a step that only decodes, of that shape, and whose rows belong to no sequence.
  void run_empty_tokens(const DecodingShape& shape);
  bool has_barriers() const { return is_divided_ && !is_warming_up_; }
  bool can_drop_rows() const;
  // Makes program_ anew; those after it add to it.
  void compile();
  void compile_embeddings();
  void compile_cross_layers(int index);
  void compile_layer(int index);
  std::pair<Source, Source> compile_inputs(int index);
  void compile_mixers(int index, const Source& input);
  // A layer whose attention and MLP others share (ModelSpec::shared_blocks).
  void compile_shared_block(int index);
  void compile_mlp(int index, const Source& input);
  void compile_addition(const BlockSpec& block, const NormStorage& output_norm, bool is_summed = false);
  void compile_drop();
  void compile_end(int index);
  // Input of a half of a layer, mixed from the streams of hyper-connections.
  void compile_mix(const std::optional<HyperWeights>& weights);
  void compile_kept(int layer);
  Target half_target(const BlockSpec& block) const;
  Rows stream() const { return {"stream", hidden_}; }
  Rows normed() const { return {"normed", normed_}; }
  Rows gathered() const { return {"mlp_input", mlp_input_}; }
  Rows branch() const { return {"branch", branch_}; }
  // Copies the hidden states of a step's rows to the host, where requested.
  void download_kept(int rows);

  std::unique_ptr<Operators> ops_;
  ModelSpec spec_;  // of the shard
  Weights weights_;
  size_t weight_bytes_;
  int max_tokens_;
  bool is_divided_;  // what a half of a layer makes is a part of a sum over ranks
  // In `prepare`, there are no barriers: a rank that allocates while another GPU waits for it may wait for that GPU.
  bool is_warming_up_ = false;
  bool returns_output_;
  bool keeps_hidden_ = false;           // hidden states of all rows are asked for, of the rank that brings the output
  CacheMemory cache_;                   // none where another runner has it
  std::vector<LayerMemory*> memories_;  // of its layers, in the order of their groups
  SelfAttention attention_;
  std::optional<CompressedAttentionLayers> compressed_;
  std::optional<RecurrentMixer> recurrence_;
  std::optional<CrossLayers> cross_;
  std::optional<ImageTokens> image_tokens_;  // where they have weights of their own
  std::optional<HeadInput> head_;
  std::optional<LayerInputs> layer_inputs_;
  std::optional<Streams> residual_streams_;
  std::optional<HyperConnections> hyper_;
  std::optional<Ngrams> ngrams_;
  DenseMlp mlp_;
  ExpertMlp expert_mlp_;
  AdapterTable adapters_;
  DType adapter_type_;

  StepTokens step_tokens_;
  OutputStage outputs_;

  Program program_{0};
  // Rows that its operations share, float32 [max_tokens, hidden_size] (model/step/program.h).
  FloatRows hidden_;
  FloatRows normed_;
  FloatRows mlp_input_;
  FloatRows branch_;
  FloatRows experts_;
  FloatRows embeddings_;  // with ModelSpec::shared_blocks
  FloatRows joined_;      // [max_tokens, 2 hidden_size], likewise
  std::vector<int> kept_layers_;
  FloatRows kept_;                     // StepOutput::token_hidden, where it is asked for
  AlignedBuffer host_kept_;            // the same in the host's memory, where the device has its own
  std::vector<DecodingShape> shapes_;  // that steps may be prepared for
};

}  // namespace turbomind
