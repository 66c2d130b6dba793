// A request inside the engine, and each of its answers: tokens, cache blocks and how far it has come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/token_choice.h"
#include "engine/bad_text.h"
#include "engine/grammar.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"

namespace turbomind {

// What the answers to one request share.
struct Job {
  Request request;
  uint64_t arrival = 0;                                // order of arrival
  uint64_t seed = 0;                                   // of the first answer
  uint64_t scope = 0;                                  // where its blocks are published (engine/block_cache.h)
  int history_len = 0;                                 // leading tokens that came from the session
  int open_answers = 1;                                // answers that have not finished
  bool may_match = true;                               // published blocks can stand for its prompt
  bool keeps_blocks = false;                           // blocks stay published when it ends
  std::shared_ptr<const std::vector<int32_t>> prompt;  // history and input
  std::shared_ptr<const Grammar> grammar;
  Clock::time_point accepted;
};

struct Sequence {
  Sequence(std::shared_ptr<Job> of, int answer, int vocab_size, const TokenTable& table)
      : job(std::move(of)),
        index(answer),
        tokens(*job->prompt),
        prompt_len(static_cast<int>(tokens.size())),
        // Answers draw from streams of their own: a multiple of the golden ratio apart.
        sampler(job->request.params, job->seed + static_cast<uint64_t>(answer) * 0x9E3779B97F4A7C15u, vocab_size),
        text(job->request.params.stop_words),
        bad_text(job->request.params.bad_words, table) {
    for (const int32_t token : tokens) sampler.note_prompt(token);
    if (job->grammar) matcher = job->grammar->new_matcher(job->request.params.stop_token_ids);
  }

  const GenerationParams& params() const { return job->request.params; }
  // Tokens whose keys and values are not in the cache yet; a decoding sequence has one.
  int pending() const { return static_cast<int>(tokens.size()) + unseen - cached; }
  int held_blocks() const { return static_cast<int>(blocks.size()) - given_back; }
  // Of the answer: tokens that are known, and those with what is on its way.
  int generated() const { return static_cast<int>(tokens.size()) - prompt_len; }
  int chosen() const { return generated() + unseen; }
  // Whether each prompt row's logits are looked at. Their log probabilities come with the first answer alone.
  bool wants_prompt_rows() const { return params().looks_at_prompt(); }
  bool wants_prompt_logprobs() const { return params().prompt_logprobs && index == 0; }
  // Whether the runner can choose its tokens: nobody looks at their logits.
  bool may_be_chosen_for() const {
    return !params().logits_hook && params().logits == RowsWanted::kNone &&
           params().hidden_states == RowsWanted::kNone && !params().generates_nothing();
  }
  // Whether what may come next depends on which tokens came before.
  bool must_see_tokens() const {
    const auto& bad = params().bad_tokens;
    return matcher || !params().bad_words.empty() ||
           std::any_of(bad.begin(), bad.end(), [](const std::vector<int32_t>& word) { return word.size() > 1; });
  }
  // Order of service: priority, then arrival, then answer.
  bool is_before(const Sequence& other) const {
    const Job& a = *job;
    const Job& b = *other.job;
    if (a.request.priority != b.request.priority) return a.request.priority < b.request.priority;
    return a.arrival != b.arrival ? a.arrival < b.arrival : index < other.index;
  }

  std::shared_ptr<Job> job;
  int index;
  std::vector<int32_t> tokens;  // prompt, then answer
  int prompt_len;
  int cached = 0;               // leading tokens whose keys and values are in `blocks`
  int published = 0;            // leading blocks whose content is published
  std::vector<int32_t> blocks;  // referenced in the BlockCache
  int given_back = 0;           // leading entries of `blocks` that lie behind the window: kNoBlock
  int planned = 0;              // tokens of this sequence in the step being built or run
  int looked_at = 0;            // leading prompt positions whose logits have been looked at
  int unseen = 0;               // tokens behind `tokens` that steps under way choose; when one is planned, 0 or 1
  int unseen_span = 0;          // the span that chooses the last of them
  bool is_open = true;          // false: the answer has ended, and only a step under way still knows of it

  Sampler sampler;
  TextStream text;
  BadText bad_text;
  std::unique_ptr<GrammarMatcher> matcher;
  std::vector<int32_t> mask;  // what `matcher` allows next; empty: not asked yet
  TokenChoice choice;         // for the step that begins
  Output held;                // what has not been sent
  Clock::time_point last_token;
};

}  // namespace turbomind
