// Token sampler of a GPU: kernels/cuda/sampling/sampling.h with the state of each sequence.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/cuda/operators.h"
#include "device/token_histories.h"
#include "device/token_sampler.h"
#include "kernels/cuda/sampling/sampling.h"

namespace turbomind {

class CudaSampler final : public TokenSampler {
 public:
  // `ops` outlives it. At most `max_choices` a step.
  CudaSampler(CudaOperators& ops, int vocab_size, int max_choices);
  ~CudaSampler() override;

  bool reserve(const SamplingMetadata& choice) override;
  void begin(const std::vector<const SamplingMetadata*>& choices) override;
  void scatter(const std::vector<InFlightToken>& in_flight, int32_t* tokens) override;
  void choose(int first, int count, float* logits) override;
  void end() override;
  const SampledToken* collect() override;
  double seconds_taken() const override { return seconds_taken_; }

 private:
  // Which tokens a sequence has and how often, for its penalties.
  struct Counts {
    uint32_t* seen;
    int32_t* counts;
  };
  // Choices whose log probabilities are wanted: their rows among the logits that are chosen from at once, and the way
  // their tokens go.
  struct LogprobRows {
    std::vector<int> choices;
    int max_top = 0;
    Staged rows;   // int32 [max_choices]
    Staged moves;  // TokenMove [max_choices]
  };
  // Results of a step; on the device and, for each of two steps under way, on the host.
  struct Results {
    AlignedBuffer tokens;    // int32 [max_choices]
    AlignedBuffer logprobs;  // float32 [logprob rows]
    AlignedBuffer top;       // int32 [logprob rows, max_top]
    AlignedBuffer of_top;    // float32 [logprob rows, max_top]
  };
  struct StepInFlight {
    Results results;
    std::vector<SampledToken> chosen;
    cudaEvent_t began = nullptr;
    cudaEvent_t is_there = nullptr;
  };

  size_t mask_words() const { return (static_cast<size_t>(vocab_size_) + 31) / 32; }
  size_t history_words() const { return mask_words() + static_cast<size_t>(vocab_size_); }
  Counts counts_at(int slot) const;
  size_t bytes_of_lists(const SamplingMetadata& choice) const;
  void count_tokens(const Counts& counts, const SamplingMetadata& choice);
  void fill_rows(const std::vector<const SamplingMetadata*>& choices);
  void fill_logprob_rows(const std::vector<const SamplingMetadata*>& choices);
  void choose_at_once(int first, int count, float* logits);

  CudaOperators& ops_;
  int vocab_size_;
  bool is_enabled_;
  int64_t step_ = 0;                // under way
  size_t reserved_list_bytes_ = 0;  // for the next
  AlignedBuffer history_memory_;
  TokenHistories histories_;

  Staged rows_;   // SamplingRow [max_choices]
  Staged lists_;  // what the rows point at: biases, forbidden tokens, masks
  Staged moves_;  // TokenMove [max_choices]; of unseen tokens
  LogprobRows logprob_rows_;
  AlignedBuffer logprob_tokens_;  // int32 [max_choices]
  Results results_;
  std::array<StepInFlight, 2> steps_;  // of even and odd steps
  int64_t taken_ = 0;                  // steps
  double seconds_taken_ = 0;
};

}  // namespace turbomind
