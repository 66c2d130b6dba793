// A smaller model that drafts how sequences continue, with the tokenizer of the model it drafts for.
//
// Its keys and values are a cache group (model/cache_plan.h): a sequence has places for them whenever it has places for
// those of the model. Tokens are found again that another sequence, or this one before it gave up its memory, has
// computed.
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
  // `runner` and the model it drafts for are to outlive this. Drafts from `vocab_size` on are none of that model's
  // tokens.
  DraftModel(ModelRunner& runner, int max_rows, int vocab_size);

  int missing_tokens(const Work& work) override;
  void draft(std::span<const Work> all, int count) override;

 private:
  // A sequence in the steps of one call of draft().
  struct Running {
    const Work* work;
    std::vector<int32_t> tokens;  // with its drafts
    int cached;                   // of them in the cache
  };

  static int cached_rows(const Work& work);
  void run(std::vector<Running>& running);
  // Drafts up to `count` tokens more of each.
  void chain(std::vector<Running>& running, int count);
  static void keep(const Running& done);

  ModelRunner& runner_;
  int max_rows_;
  int vocab_size_;
  Sampler sampler_;
};

}  // namespace turbomind
