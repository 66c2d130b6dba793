// Mixture of experts: which experts a row goes to, and the sum of what they make of it.
//
// Every row is computed alone and its experts are added in ascending order, so a row's result is bitwise the same
// alone, in a batch, and in any chunk of a prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/activation.h"
#include "kernels/linear.h"

namespace turbomind {

enum class RouterScore : uint8_t {
  kSoftmax,       // softmax over all experts
  kSigmoid,       // each expert's own sigmoid (DeepSeek-V3)
  kSqrtSoftplus,  // the square root of each expert's softplus (DeepSeek-V4)
  kSparsemixer,   // one expert after another, each weighed among those close to the best that is left: SparseMixer-v2
                  // without sampling (Liu et al., 2024, arXiv 2409.12136)
};

// Score of a group of experts: its best score (DeepSeek-V2) or the sum of its two best (DeepSeek-V3).
enum class GroupScore : uint8_t { kMax, kTop2 };

struct RouterParams {
  int num_experts = 0;
  int top_k = 0;  // experts a row goes to
  RouterScore score = RouterScore::kSoftmax;
  float mixer_jitter = 0;  // kSparsemixer: experts further than 2 jitter from the best have no share
  int num_groups = 1;      // neighbouring experts form groups of equal size ...
  int top_groups = 1;      // ... of which only the best are chosen from
  GroupScore group_score = GroupScore::kMax;
  const float* choice_bias = nullptr;    // [num_experts]; added to the scores to choose by, not to weigh by
  bool normalize = false;                // the weights of a row are divided by their sum
  float scale = 1;                       // multiplies the weights
  const float* expert_scales = nullptr;  // [num_experts] or null; multiply the weights of their experts in the end
  // Experts that a row goes to by its token, [tokens, top_k], and the tokens [rows]; null: by scores
  const int32_t* token_experts = nullptr;
  const int32_t* tokens = nullptr;
};

// logits [rows, num_experts] -> experts [rows, top_k], all different, best first, the lowest index among equals; and
// their weights [rows, top_k]. A row of NaN gets valid experts and NaN weights.
void route(ThreadPool& pool, const RouterParams& params, const float* logits, int rows, int32_t* experts,
           float* weights);

// An MLP. Gated: down(act(gate(x)) * up(x)); gate_up [2 size, hidden], gate rows first. Plain: down(act(up(x))), with
// up [size, hidden] in gate_up's place. Those of a call are of one kind and size.
struct ExpertWeight {
  LinearWeight gate_up;
  LinearWeight down;

  bool is_gated() const { return gate_up.out_features != down.in_features; }
};

// Rows that go to one expert, out of the list that is sorted by experts.
struct ExpertRows {
  int expert;
  int first;
  int count;
};

// Workspace of one call of add_experts; grows to the largest seen.
struct ExpertScratch {
  std::vector<int32_t> first_pair;  // [experts + 1]; where an expert's rows begin in `rows`
  std::vector<int32_t> rows;        // [rows top_k]; rows of x, sorted by expert
  std::vector<float> shares;        // [rows top_k]; their weights
  // Of the rows of experts that are computed together.
  std::vector<float> inputs;     // [rows, hidden]
  std::vector<float> gate_up;    // [rows, 2 size]
  std::vector<float> activated;  // [rows, size]
  std::vector<float> outputs;    // [rows, hidden]
  std::vector<LinearScratch> products;
};

// y[row] += sum over the row's experts e, ascending, of weights[row, e] MLP_e(x[row]).
//   x, y [rows, hidden] float32, not overlapping; chosen, weights [rows, top_k] as `route` made them
void add_experts(ThreadPool& pool, ExpertScratch& scratch, Activation activation,
                 const std::vector<ExpertWeight>& experts, const float* x, int rows, int top_k, const int32_t* chosen,
                 const float* weights, float* y);

}  // namespace turbomind
