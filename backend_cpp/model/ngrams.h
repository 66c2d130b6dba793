// Embeddings of n-grams that some layers add to the streams of hyper-connections (NgramsSpec; Qwen 4).
#pragma once

#include "model/recurrence/recurrent_mixer.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class Ngrams {
 public:
  Ngrams(Operators& ops, const ModelSpec& spec, int max_tokens);

  // Adds those of layer `index` of the spec's list. tokens [rows]; streams [rows, streams, hidden_size]; `states` has
  // the tokens before a step and the convolution's inputs.
  void run(const StepContext& step, int index, const NgramWeights& weights, const RecurrentMixer& states,
           const int32_t* tokens, float* streams);

 private:
  OperationFunction<EmbedNgrams> embed_;
  OperationFunction<GateNgrams> gate_;
  OperationFunction<CausalConv> convolve_;
  const NgramsSpec spec_;
  int count_;  // of streams
  int size_;
  std::vector<AlignedBuffer> multipliers_;  // uint64 [size], of each layer
  std::vector<AlignedBuffer> head_sizes_;   // int32 [heads of all n-grams], of each layer
  FloatRows embedded_;                      // [max_tokens, width]
  FloatRows keys_;                          // [max_tokens, streams, hidden_size]
  FloatRows queries_;                       // the same
  FloatRows values_;                        // [max_tokens, hidden_size]
};

}  // namespace turbomind
