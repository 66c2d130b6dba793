// Where other prompts are likely to diverge from a prompt: at the ends of its messages, and shortly before its end,
// where a question follows a document.
//
// The prompt is only tokens here. Chat templates put special tokens between messages, so special tokens mark the ends
// of messages, also in prompts that no template made.
#pragma once

#include <vector>

#include "engine/generation/token_table.h"

namespace turbomind {

// Special tokens closer than this are between the same two messages: <|im_end|> \n <|im_start|>.
inline constexpr int kSpecialTokensApart = 8;

// Forks of a prompt: those of its first two messages, and of the last ones.
inline constexpr int kMaxForks = 8;

// For a prompt in blocks of `block_len` tokens, returns the numbers of leading tokens that other prompts are likely to
// share: ascending, at most kMaxForks, in [1, tokens.size()].
std::vector<int> likely_forks(const std::vector<int32_t>& tokens, const TokenTable& table, int block_len);

}  // namespace turbomind
