// A smaller model that guesses how sequences go on, with the tokenizer of the model it guesses for.
//
// Its keys and values lie in a cache of its own with the same number of blocks, of which a sequence uses those with the
// numbers it has in the other cache. So there is room whenever there is room there, and nothing to give back. What a
// block of it holds is known by a hash of the tokens up to the block's end, so rows are found again that another
// sequence, or this one before it gave up its blocks, has left. A hash that collides costs guesses, not answers.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/answer/sampler.h"
#include "engine/speculation/drafter.h"

namespace turbomind {

class DraftModel final : public Drafter {
 public:
  // `runner` has a cache of `block_count` blocks; both it and the model it guesses for are to outlive this. Guesses
  // from `vocab_size` on are none of that model's tokens.
  DraftModel(ModelRunner& runner, int block_count, int block_len, int max_rows, int vocab_size);

  int missing_rows(const Work& work) override;
  void draft(std::span<const Work> all, int count) override;

 private:
  // A sequence in the steps of one call of draft().
  struct Running {
    const Work* work;
    std::vector<int32_t> tokens;  // with its guesses
    int cached;                   // of them in the cache
    int cached_before;            // this call
  };

  int cached_rows(const Work& work) const;
  bool has_blocks(const Work& work, int cached) const;
  void run(std::vector<Running>& running);
  void keep(const Running& done);

  ModelRunner& runner_;
  int block_len_;
  int max_rows_;
  int vocab_size_;
  Sampler sampler_;
  std::vector<uint64_t> held_;  // by block: hash of the tokens up to its end; 0: nothing is known
};

}  // namespace turbomind
