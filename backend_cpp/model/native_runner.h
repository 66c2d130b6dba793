// The parametric decoder: runs a ModelSpec on the kernels.
#pragma once

#include <memory>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "model/dense_mlp.h"
#include "model/expert_mlp.h"
#include "model/model_runner.h"
#include "model/model_spec.h"
#include "model/self_attention.h"
#include "model/weights.h"

namespace turbomind {

class NativeRunner final : public ModelRunner {
 public:
  // `max_rows` bounds the rows of one step. threads 0: all CPUs.
  NativeRunner(ModelSpec spec, const Checkpoint& checkpoint, const WeightOptions& options, CacheType cache_type,
               int max_rows, int threads);

  int vocab_size() const override { return spec_.vocab_size; }
  int hidden_size() const override { return spec_.hidden_size; }
  size_t block_bytes(int block_len) const override { return attention_.layout(block_len).block_bytes(); }
  size_t free_cache_memory() const override;
  int window() const override;
  int cache_variant(int prompt_len) const override { return attention_.cache_variant(prompt_len); }
  void allocate_cache(int block_count, int block_len) override { attention_.allocate_cache(block_count, block_len); }
  StepOutput forward(const StepInput& input) override;

 private:
  void embed(const StepInput& input);
  void run_layer(const StepContext& step, int index);
  // Adds what a half of the layer made, in branch_, to the residual stream.
  void add_branch(const StepContext& step, const NormStorage& output_norm);
  StepOutput compute_logits(const StepInput& input);

  ModelSpec spec_;
  ThreadPool pool_;
  LinearScratch scratch_;
  Weights weights_;
  int max_rows_;
  bool adds_directly_;  // the halves of a layer add to the residual stream themselves
  SelfAttention attention_;
  DenseMlp mlp_;
  ExpertMlp expert_mlp_;

  // Activations, float32, [max_rows, ...].
  AlignedBuffer hidden_;      // hidden_size; the residual stream
  AlignedBuffer normed_;      // hidden_size
  AlignedBuffer mlp_input_;   // hidden_size; of parallel blocks with a norm for each half
  AlignedBuffer branch_;      // hidden_size; where halves do not add directly
  AlignedBuffer logit_rows_;  // hidden_size; the wanted rows, gathered
  AlignedBuffer logits_;      // vocab_size; memory is taken only when touched
};

// Memory this process may still use, in bytes: what the system has available, within the cgroup's limit.
size_t available_memory();

}  // namespace turbomind
