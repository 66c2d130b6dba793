// Recurrent mixers, which keep a state of fixed size for each sequence in place of a cache: the gated linear recurrence
// and what models compute around it. All float32.
//
// One recurrence serves several models; for each value head h, with the key head h / (heads / key_heads):
//
//   S = decay S                    decay: a number, or one for each row of S
//   w = beta (v - S^T k)           with has_delta, else beta v
//   S = S + k w^T
//   out = S^T q + skip v
//
//   gated delta rule (Yang et al., 2024)           has_delta, a decay for each row and head
//   Kimi delta attention (Kimi Team, 2025)         has_delta, a decay for each row, head and channel of the key
//   Mamba-2 (Dao & Gu, 2024)                       k = B, q = C, v = x, skip = D, beta = dt; key_dim = the state's size
//   lightning attention (Qin et al., 2024)         a constant decay for each head, beta 1
//
// A row's results and the state after it have the same bits whatever the spans and chunks of the sequence are, what
// else is in the step, and how many threads compute it: rows are computed one after the other, and each sum over the
// key's channels adds them in an order that depends on key_dim alone.
//
// Operators only launch: what a step changes (spans, values) is in the device's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/operation.h"

namespace turbomind {

// The rows of one sequence in a step, and where its state is. A span without rows changes nothing.
struct StateSpan {
  int32_t first_token;
  int32_t count;
  int32_t page;
  int32_t is_fresh;  // not 0: the state before the first row is all zeros, whatever the memory holds
};

// The states of one layer. That of a span is float32 from pages + page page_bytes + offset on, and afterwards the state
// after the span's last row. No two spans with rows have the same page. Rows of no span come to anything.
struct StateMemory {
  std::byte* pages = nullptr;
  size_t page_bytes = 0;  // a multiple of 16, as offset is
  size_t offset = 0;
  const StateSpan* spans = nullptr;  // [span_count]
  int span_count = 0;

  constexpr std::byte* state(int32_t page) const {  // constexpr: callable from CUDA kernels too
    return pages + static_cast<size_t>(page) * page_bytes + offset;
  }
};

// Rows that begin `stride` floats apart.
struct StridedRows {
  float* first = nullptr;
  size_t stride = 0;

  constexpr float* row(size_t index) const { return first + index * stride; }
};

inline constexpr int kMaxConvKernel = 10;

// Depthwise causal convolution, then SiLU where asked:
//
//   y[t, c] = act(bias[c] + sum over j of weight[c, j] x[t - (kernel - 1) + j, c])
//
// added up from the bias on in ascending order of j. The inputs before a span's first row are its state
// [kernel - 1, channels], oldest first.
struct ConvParams {
  StateMemory state;
  int channels = 0;
  int kernel = 0;                 // 1 .. kMaxConvKernel
  const float* weight = nullptr;  // [channels, kernel]
  const float* bias = nullptr;    // [channels], or null: 0
  bool has_silu = false;
};

struct CausalConv {
  static constexpr std::string_view kName = "causal_conv";

  ConvParams params;
  StridedRows x;  // [rows, channels]
  int rows = 0;
  StridedRows y;  // [rows, channels]; x, or apart from it

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

enum class RecurrenceGate : uint8_t {
  kDelta,  // decay = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b); with a bound, decay =
           // exp(-bound sigmoid(exp(a_log) (a + dt_bias)))
  kMamba,  // dt = softplus(a + dt_bias) within [dt_min, dt_max]; decay = exp(-exp(a_log) dt), beta = dt
};

struct GateParams {
  RecurrenceGate kind = RecurrenceGate::kDelta;
  int heads = 0;
  int width = 1;                   // decays of a head: 1, or with kDelta key_dim
  const float* a_log = nullptr;    // [heads]
  const float* dt_bias = nullptr;  // [heads, width]
  float dt_min = 0;                // kMamba only
  float dt_max = 0;                // kMamba only; may be infinite
  float bound = 0;                 // kDelta only; 0: none
};

// decay and beta are dense; decay may be a, and beta b, where those are dense.
struct RecurrenceGates {
  static constexpr std::string_view kName = "recurrence_gates";

  GateParams params;
  StridedRows a;  // [rows, heads * width]
  StridedRows b;  // [rows, heads], kDelta only: null where no beta is wanted
  int rows = 0;
  float* decay = nullptr;  // [rows, heads * width]
  float* beta = nullptr;   // [rows, heads]

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

inline constexpr int kMaxKeyDim = 256;

// The formulas are above.
struct RecurrenceParams {
  StateMemory state;  // [heads, key_dim, value_dim]
  int heads = 0;
  int key_heads = 0;  // divides heads
  int key_dim = 0;    // 1 .. kMaxKeyDim
  int value_dim = 0;
  bool has_delta = false;
  // decay_width 0: [heads]; 1: [rows, heads]; key_dim: [rows, heads, key_dim]
  const float* decay = nullptr;
  int decay_width = 0;
  const float* beta = nullptr;  // [rows, heads], or null: 1
  const float* skip = nullptr;  // [heads], or null: 0
};

struct Recurrence {
  static constexpr std::string_view kName = "recurrence";

  RecurrenceParams params;
  HeadsView q;           // key_heads heads of key_dim, already normalized and scaled
  HeadsView k;           // the same
  HeadsView v;           // heads of value_dim
  float* out = nullptr;  // [rows, heads * value_dim]; it overlaps none of them

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

inline constexpr int kMaxScanKeyDim = 16;

// The selective scan of Mamba (Gu & Dao, 2023), whose decays differ in each channel. For each channel, whose state is a
// column h of key_dim numbers:
//
//   dt = softplus(step)
//   h[n] = exp(rates[n] dt) h[n] + key[n] dt x
//   out = skip x + sum over n, in ascending order, of query[n] h[n]
struct SelectiveScan {
  static constexpr std::string_view kName = "selective_scan";

  StateMemory state;  // [key_dim, channels]
  int channels = 0;
  int key_dim = 0;               // 1 .. kMaxScanKeyDim
  const float* rates = nullptr;  // [key_dim, channels], negative
  const float* skip = nullptr;   // [channels]
  const float* steps = nullptr;  // [rows, channels]
  StridedRows keys;              // [rows, key_dim]
  StridedRows queries;           // [rows, key_dim]
  const float* x = nullptr;      // [rows, channels]
  float* out = nullptr;          // [rows, channels]; x, or apart from it

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// The real-gated linear recurrent unit (De et al., 2024, arXiv 2402.19427). For each channel,
//
//   a = exp(rate sigmoid(decay + its bias)), i = sigmoid(input + its bias)
//   h = a h + sqrt(1 - a^2) i x, and of a sequence's first row i x
//   out = h
struct GatedLru {
  static constexpr std::string_view kName = "gated_lru";

  StateMemory state;  // [channels]
  int channels = 0;
  const float* rates = nullptr;   // [channels], negative
  const float* biases = nullptr;  // [2, channels], of inputs and of decays
  const float* inputs = nullptr;  // [rows, channels]
  const float* decays = nullptr;  // the same
  const float* x = nullptr;       // the same
  float* out = nullptr;           // the same, apart from them

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// The gates of a mixer's results.
enum class GateKind : uint8_t { kSigmoid, kSilu, kLinear, kGeluTanh };

}  // namespace turbomind
