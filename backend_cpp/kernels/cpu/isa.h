// CPU kernel table of an instruction set, and the choice of one at start.
//
// kernels_isa.cc is compiled once for each (namespaces amx, avx512bf16, avx512vnni, avx512, avxvnni, avx2, or i8mm,
// dotprod, neon of ARM; scalar; and amx_emulated, where plain code stands for the tiles of amx) and fills one table
// each.
#pragma once

#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/lora.h"
#include "kernels/norm.h"
#include "kernels/paged_attention.h"
#include "kernels/recurrence.h"

namespace turbomind {

// Queries of one sequence that share a key/value head.
struct AttentionQueries {
  int count;
  const int32_t* begins;     // [count] first position each looks at
  const int32_t* ends;       // [count] one past the last position each looks at
  const int32_t* positions;  // [count] its own; null where no score depends on the distance
  const int32_t* heads;      // [count], or null likewise
  float* factors;            // [count, key_dim] the queries; changed
  float* sums_of_factors;    // [count] scratch
  float* shifts;             // [count] scratch
  // Results; a query that sees no token has the maximum -infinity.
  float* out;      // [count, value_dim]
  float* maximum;  // [count]
  float* sum;      // [count]
};

// Channels that a convolution takes at a time.
inline constexpr int kConvBlock = 256;

struct KernelTable {
  const char* name;

  // Format into which `rows` rows are to be made.
  RowsPlan (*rows_plan)(const LinearWeight& weight, int rows);
  // y[r, n] for r in [0, rows) and n in [first, last) of `linear`, from rows as they are.
  void (*linear_block)(const LinearWeight& weight, const float* x, int rows, int first, int last, float* y,
                       bool accumulate);
  // Rounds row number `row` of x for a packed weight whose groups have `group` inputs.
  void (*quantize_row)(const float* x, int in_features, int group, int row, const QuantizedRows& rounded);
  // y for rows [first_row, first_row + rows) and tiles of 16 outputs [first_tile, last_tile); first_row is a multiple
  // of the rows that are adjacent.
  void (*packed_block)(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows, int first_tile,
                       int last_tile, float* y, bool accumulate);
  // The same two for wide rows.
  void (*convert_row)(const float* x, int in_features, int row, const ConvertedRows& converted);
  void (*converted_block)(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows, int first_tile,
                          int last_tile, float* y, bool accumulate);
  // y += scale shrunk B^T for outputs [first, last) of a part; shrunk and y begin where the part does.
  void (*lora_expand_block)(const LoraPart& part, WeightFormat format, const float* shrunk, int first, int last,
                            float* y);
  void (*norm_row)(const NormWeight& weight, const float* x, int size, float* y);
  // y = act(gate) * up; up may be null: y = act(gate).
  void (*activate_row)(Activation activation, const float* gate, const float* up, int size, float* y);
  void (*xielu_row)(const XieluFactors& factors, const float* x, int size, float* y);
  void (*scale_softcap_row)(float scale, float softcap, int size, float* x);
  // Queries over tokens [begin, end) of their sequence's blocks, unnormalised.
  void (*compute_attention)(const AttentionParams& params, int kv_head, const int32_t* blocks, int begin, int end,
                            const AttentionQueries& queries);
  // scores[t] = sum_h weights[h] relu(q_h . k_t) for `tokens` tokens, a multiple of 16.
  //   keys [dim, tokens]; q: heads of `dim`, `stride` apart
  void (*index_scores)(const float* keys, int tokens, int dim, const float* q, size_t stride, int heads,
                       const float* weights, float* scores);
  // The convolution of channels [first, last), at most kConvBlock.
  void (*conv_block)(const ConvParams& params, int first, int last, const StridedRows& x, const StridedRows& y);
  void (*recurrence_gate_row)(const GateParams& params, const float* a, const float* b, float* decay, float* beta);
  // How many columns of a state `recur` takes at a time.
  int (*recurrence_columns)();
  // All tokens of a span over one head's columns [first, first + recurrence_columns()), or, with first -1, all columns.
  void (*recur)(const RecurrenceParams& params, const HeadsView& q, const HeadsView& k, const HeadsView& v,
                const StateSpan& span, int head, int first, float* out);
  // Channels [first, last) of a span.
  void (*scan)(const SelectiveScan& op, const StateSpan& span, int first, int last);
  void (*gated_lru)(const GatedLru& op, const StateSpan& span, int first, int last);
  int32_t (*argmax)(const float* logits, int size);
  void (*chunk_maxima)(const float* logits, int size, float* maxima);
  void (*exp_weights)(const float* logits, int size, float maximum, float factor, float* weights, float* sums);
};

// The table in use: the best the CPU supports, or the one named by LMDEPLOY_CPU_ISA or select_isa.
const KernelTable& kernels();
// Names usable on this CPU, best first; after them the one whose instructions are emulated.
std::vector<std::string> supported_isas();
// Switches the table; for tests. Throws Error(kInvalidArgument) for an unknown or unsupported name.
void select_isa(const std::string& name);

// y [rows, out_features] = x W^T as `linear` makes it, of few rows and on the calling thread.
void multiply(const KernelTable& table, const LinearWeight& weight, const float* x, int rows, float* y);
// Whether small products with int8, int4 and bfloat16 weights are bitwise those of another table. Asked once, before a
// table with tiles is used: what is wrong on a processor nobody has tried must not reach a response.
bool has_same_gemms(const KernelTable& table, const KernelTable& reference);

#define TM_DECLARE_TABLE(ISA)      \
  namespace ISA {                  \
  extern const KernelTable kTable; \
  }
TM_DECLARE_TABLE(amx)
TM_DECLARE_TABLE(amx_emulated)
TM_DECLARE_TABLE(avx512bf16)
TM_DECLARE_TABLE(avx512vnni)
TM_DECLARE_TABLE(avx512)
TM_DECLARE_TABLE(avxvnni)
TM_DECLARE_TABLE(avx2)
TM_DECLARE_TABLE(i8mm)
TM_DECLARE_TABLE(dotprod)
TM_DECLARE_TABLE(neon)
TM_DECLARE_TABLE(scalar)
#undef TM_DECLARE_TABLE

}  // namespace turbomind
