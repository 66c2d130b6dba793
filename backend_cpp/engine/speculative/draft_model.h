// A smaller draft model with the tokenizer of the target model.
//
// Its keys and values are a cache group (model/cache_plan.h), so a sequence always has room for them, and prefix
// caching works as for the model.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/generation/sampler.h"
#include "engine/speculative/drafter.h"

namespace turbomind {

class DraftModel final : public Drafter {
 public:
  DraftModel(ModelRunner& runner, int max_rows, int vocab_size);

  int missing_tokens(const Work& work) override;
  void draft(std::span<const Work> all, int count) override;

 private:
  // A sequence in the steps of one call of draft().
  struct Running {
    const Work* work;
    std::vector<int32_t> tokens;  // with its drafts
    int cached;                   // leading tokens in the cache
  };

  static int cached_rows(const Work& work);
  void run_all(std::vector<Running>& running);
  // Drafts up to `count` more tokens for each.
  void chain_from(std::vector<Running>& running, int count);
  static void keep(const Running& done);

  Sampler sampler_;
};

}  // namespace turbomind
