// The parametric decoder: runs a ModelSpec on the kernels.
#pragma once

#include <memory>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/paged_attention.h"
#include "model/model_runner.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace turbomind {

class NativeRunner final : public ModelRunner {
 public:
  // `max_rows` bounds the rows of one step. threads 0: all CPUs.
  NativeRunner(ModelSpec spec, const Checkpoint& checkpoint, const WeightOptions& options, CacheType cache_type,
               int max_rows, int threads);

  int vocab_size() const override { return spec_.vocab_size; }
  int hidden_size() const override { return spec_.hidden_size; }
  size_t block_bytes(int block_len) const override { return layout(block_len).block_bytes(); }
  size_t free_cache_memory() const override;
  void allocate_cache(int block_count, int block_len) override;
  StepOutput forward(const StepInput& input) override;

 private:
  CacheLayout layout(int block_len) const;
  void embed(const StepInput& input);
  void fill_rope_tables(const StepInput& input);
  void run_layer(int index, int rows, AttentionParams& attention);
  StepOutput compute_logits(const StepInput& input);

  ModelSpec spec_;
  ThreadPool pool_;
  LinearScratch scratch_;
  Weights weights_;
  CacheType cache_type_;
  int max_rows_;

  AlignedBuffer cache_;
  CacheLayout layout_;
  std::vector<AttentionSpan> spans_;

  // Activations, float32, [max_rows, ...].
  AlignedBuffer hidden_;      // hidden_size; the residual stream
  AlignedBuffer normed_;      // hidden_size
  AlignedBuffer qkv_;         // (heads + 2 kv_heads) head_dim
  AlignedBuffer attended_;    // heads head_dim
  AlignedBuffer gate_up_;     // 2 intermediate_size
  AlignedBuffer activated_;   // intermediate_size
  AlignedBuffer rope_cos_;    // head_dim / 2
  AlignedBuffer rope_sin_;    // head_dim / 2
  AlignedBuffer workspace_;   // of attention; grows
  AlignedBuffer logit_rows_;  // hidden_size; the wanted rows, gathered
  AlignedBuffer logits_;      // vocab_size; memory is taken only when touched
};

// Memory this process may still use, in bytes: what the system has available, within the cgroup's limit.
size_t available_memory();

}  // namespace turbomind
