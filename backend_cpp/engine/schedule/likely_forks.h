// Where other prompts are likely to part from one: at the ends of its messages, and shortly before its end, where a
// question follows a document.
//
// A prompt is tokens alone here. Chat templates put special tokens between messages, so a message ends where such
// tokens stand; the same is found in prompts that no template has made.
#pragma once

#include <vector>

#include "engine/generation/token_table.h"

namespace turbomind {

// Special tokens that are fewer tokens apart lie between the same two messages: <|im_end|> \n <|im_start|>.
inline constexpr int kSpecialTokensApart = 8;

// Forks of a prompt: those of its first two messages, and of the last ones.
inline constexpr int kMaxForks = 8;

// For a prompt in blocks of `block_len` tokens: how many of its leading tokens others are likely to begin with,
// ascending, at most kMaxForks numbers in [1, tokens.size()].
std::vector<int> likely_forks(const std::vector<int32_t>& tokens, const TokenTable& table, int block_len);

}  // namespace turbomind
