// Device interface of the decoder: the operators of kernels/, and the memory they work in.
//
// Pointers are the device's, except where a comment says "host". Calls execute in order; on a device that computes
// alongside the host, only `download` waits. Shapes, layouts and rounding are those of the operator's header.
// Activations are float32, or the type of TypedRows and LinearInput that `types_of` and `attention_output_type` allow.
//
// One thread uses an object at a time. A call throws Error when the device fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "device/operations.h"
#include "device/token_sampler.h"
#include "kernels/activation.h"
#include "kernels/heads_view.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/paged_attention.h"
#include "kernels/rope.h"

namespace turbomind {

// Purpose of a device's memory.
enum class MemoryUse { kWeights, kSteps, kCache };

// Direction of a copy.
enum class Transfer { kUpload, kStagedUpload, kDownload, kWithin };

// Padded shape of a decoding step: rows, and the bound of their contexts.
struct DecodingShape {
  int rows = 0;
  int context = 0;
};

// Steps prepared ahead (graphs), by shape.
class PreparedSteps {
 public:
  virtual ~PreparedSteps() = default;

  // The shapes of steps of at most `max_sequences` sequences of up to `max_context` tokens, the most frequent ones
  // first.
  virtual std::vector<DecodingShape> shapes(int max_sequences, int max_context) const = 0;
  // Replaces set_spans for tokens, of all its tables: a step of that shape without rows.
  virtual void set_empty_spans(const DecodingShape& shape) = 0;
  // Runs `body`, the operators of such a step, to load kernels and allocate memory.
  virtual void warm_up(const std::function<void()>& body) = 0;
  // Captures the repeatable `body` of `rows` rows for the spans that were set. False: there is no memory.
  virtual bool prepare(int rows, const std::function<void()>& body) = 0;
  // Erases what was prepared for the spans that were set.
  virtual void erase(int rows) = 0;
};

class Operators {
 public:
  virtual ~Operators() = default;

  // Operators of the same device in one order with these; null: all that Device::make returns are.
  virtual std::unique_ptr<Operators> make_alongside() { return nullptr; }
  // Lowers the priority of its compute threads, the caller included.
  virtual void lower_priority() {}

  // ---- memory ----

  // Whether the host's memory is the device's: nothing needs to be uploaded.
  virtual bool shares_host_memory() const = 0;
  // Throws Error (kUnavailable) that says what took the memory and which settings lower it, when memory runs out.
  virtual AlignedBuffer allocate(size_t bytes, MemoryUse use = MemoryUse::kSteps) = 0;
  // Throws that error when there is no memory for `bytes` in all.
  virtual void expect(size_t /*bytes*/, MemoryUse /*use*/) const {}
  // Memory of the host from which uploads are fast.
  virtual AlignedBuffer allocate_staging(size_t bytes) = 0;
  // Memory available for the KV cache, in bytes.
  virtual size_t free_memory() const = 0;
  // `source` is the host's; staging memory may change only after a later download has returned.
  void upload(const void* source, size_t bytes, void* destination) {
    transfer(Transfer::kUpload, source, bytes, destination);
  }
  // The same from staging memory, batched: uploaded before the next operator or run_step.
  void upload_staged(const void* source, size_t bytes, void* destination) {
    transfer(Transfer::kStagedUpload, source, bytes, destination);
  }
  // `destination` is the host's. Waits until it is filled.
  void download(const void* source, size_t bytes, void* destination) {
    download_later(source, bytes, destination);
    wait();
  }
  // The same without waiting: `destination`, staging memory, is read by later uploads alone.
  void download_later(const void* source, size_t bytes, void* destination) {
    transfer(Transfer::kDownload, source, bytes, destination);
  }
  // Waits for all calls; staging memory may change then.
  virtual void wait() {}
  // Within the device.
  void copy(const void* source, size_t bytes, void* destination) {
    transfer(Transfer::kWithin, source, bytes, destination);
  }
  // Rewrites the codes of a layer in the order in which `linear` reads them.
  virtual void lay_out(LinearWeight& /*weight*/) {}
  virtual void transfer(Transfer transfer, const void* source, size_t bytes, void* destination) = 0;
  virtual void fill_zero(void* data, size_t bytes) = 0;

  // ---- a step ----

  // How many rows to compute for a step of `rows` rows, at least this many; a device may have a few sizes prepared.
  // Rows beyond the step's belong to no span and come to nothing.
  virtual int padded_rows(int rows, bool /*is_decoding*/) const { return rows; }
  // Reserves memory for set_spans: this many spans, with this many blocks in each of `table_count` tables.
  virtual void reserve_spans(int /*table_count*/, int /*span_count*/, size_t /*block_count*/) {}
  // The spans (host) of the step that follows, over cache blocks of this many tokens; each set at most once a step.
  virtual void set_spans(SpanSet set, std::vector<AttentionSpan> spans, int block_len) = 0;
  // Runs `body`, a step of `rows` rows; if repeatable (differences are in memory uploaded before), may replay a graph.
  virtual void run_step(int /*rows*/, bool /*is_repeatable*/, const std::function<void()>& body) { body(); }
  // Null: unsupported.
  virtual PreparedSteps* prepared_steps() { return nullptr; }

  // Samples for at most `max_choices` sequences a step; null: the host samples.
  virtual std::unique_ptr<TokenSampler> make_sampler(int /*vocab_size*/, int /*max_choices*/) { return nullptr; }

  // ---- operators ----

  // Operations that not every model needs.
  virtual const OperationTable& operations() const = 0;

  // y[row] = scale table[tokens[row]]. table [vocab, size] of 32 or 16 bits, or where
  // the device takes GGUF's codes, WeightReader::table's; tokens [rows]; y [rows, size]
  virtual void embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) = 0;
  // y[i] = x[indices[i]]. x [.., size], y [count, size]
  void gather_rows(const float* x, const int32_t* indices, int count, int size, float* y) {
    embed({.data = x, .in_features = size}, indices, count, 1, y);
  }
  // y[indices[i]] = x[i], or, with accumulate, += x[i]; no index twice. x [count, size], y [.., size]
  virtual void scatter_rows(const float* x, const int32_t* indices, int count, int size, float* y, bool accumulate) = 0;
  // The heads of one matrix into another's; equal in rows, heads and head_dim.
  virtual void copy_heads(const HeadsView& from, const HeadsView& to) = 0;

  // The types that `linear` takes and gives with this weight and this many rows.
  virtual LinearTypes types_of(const LinearWeight& weight, int rows) = 0;
  // y = the linear layer of `input`, or, float32 only, y +=. A prologue gives the bits of separate operators.
  virtual void linear(const LinearWeight& weight, const LinearInput& input, int rows, const TypedRows& y,
                      bool accumulate) = 0;
  // The input after its prologue: its rows, or its workspace, filled with float32.
  LinearInput as_rows(const LinearInput& input, int rows, int size) {
    return input.has_prologue() ? LinearInput(materialize(input, rows, size)) : input;
  }
  // The same of an input of float32.
  const float* materialize(const LinearInput& input, int rows, int size) {
    if (!input.has_prologue()) return input.x.floats();
    if (input.norm != nullptr) {
      norm(*input.norm, input.x.floats(), rows, size, input.workspace);
    } else {
      activate_gated(*input.gate, input.x.floats(), rows, size, input.workspace);
    }
    return input.workspace;
  }
  // y = the MLP of `input`, or y +=; y may alias the input's source. The layers exchange a type that both support.
  void gated_mlp(const GatedMlp& mlp, const LinearInput& input, int rows, float* y, bool accumulate) {
    LinearWeight gate_up = mlp.gate_up;
    gate_up.bias = nullptr;  // added to the sums where they are read
    const DType type = types_of(mlp.down, rows).makes_rows ? types_of(gate_up, rows).result : DType::kFloat32;
    LinearInput between = mlp.between();
    if (type == DType::kFloat32) {
      gate_up.bias = mlp.gate_up.bias;
    } else {
      between.x.type = type;
      between.bias = mlp.gate_up.bias;
    }
    linear(gate_up, input, rows, {mlp.projected, type}, false);
    linear(mlp.down, between, rows, y, accumulate);
  }
  virtual void norm(const NormWeight& weight, const HeadsView& x, const HeadsView& y) = 0;
  void norm_heads(const NormWeight& weight, const HeadsView& heads) { norm(weight, heads, heads); }
  void norm(const NormWeight& weight, const float* x, int rows, int size, float* y) {
    norm(weight, rows_view(x, rows, size), rows_view(y, rows, size));
  }
  virtual void rope_table(const RopeAngles& angles, int rows, float* cosine, float* sine) = 0;
  virtual void rope(const RopeTable& table, const HeadsView& heads, const float* factors) = 0;

  virtual void activate(Activation activation, const HeadsView& gate, const HeadsView& up, const HeadsView& y) = 0;
  // The first half of a row of gate_up [rows, 2 size] is gate, the second up. y [rows, size]
  void activate_gated(Activation activation, const float* gate_up, int rows, int size, float* y) {
    const auto width = static_cast<size_t>(2 * size);
    activate(activation, rows_view(gate_up, rows, size, width), rows_view(gate_up + size, rows, size, width),
             rows_view(y, rows, size));
  }
  void activate(Activation activation, const float* x, int rows, int size, float* y) {
    activate(activation, rows_view(x, rows, size), {}, rows_view(y, rows, size));
  }
  // x *= act(gate)
  void gate_heads(Activation activation, const HeadsView& gate, const HeadsView& x) {
    activate(activation, gate, x, x);
  }
  virtual void apply(const Pointwise& function, const HeadsView& x) = 0;
  void scale(float factor, const HeadsView& x) {
    if (factor != 1) apply({Pointwise::Kind::kScale, factor}, x);
  }
  // Each row has its own factor.
  void scale_rows(const float* factors, const HeadsView& x) {
    apply({.kind = Pointwise::Kind::kScaleRows, .factors = factors}, x);
  }
  // x = softcap tanh(scale x / softcap), or scale x where softcap is 0. x [rows, size]
  void scale_softcap(float scale, float softcap, int rows, int size, float* x) {
    apply({softcap == 0 ? Pointwise::Kind::kScale : Pointwise::Kind::kCap, scale, softcap}, rows_view(x, rows, size));
  }
  virtual void add_scaled(float scale, const float* x, int rows, int size, float* y) = 0;

  // Each element becomes its sum over the ranks the model is spread over, the same bits on all of them
  // (device/device.h). All ranks call it with as many elements; throws Error when another has failed.
  virtual void all_reduce(float* /*x*/, size_t /*count*/) {}
  // x [ranks, count], of which each rank has filled its part, becomes equal on all ranks; else as all_reduce.
  virtual void all_gather(float* /*x*/, size_t /*count*/) {}

  // Uses the spans of set_spans for the set in `params`; rows of no span may stay unchanged. Queries become what
  // paged_attention with the same parameters reads, which may overwrite them.
  virtual void rope_and_write(const RopeTable& table, const AttentionParams& params, const HeadsView& q,
                              const float* factors, const HeadsView& k, const HeadsView& v) = 0;
  void write_cache(const AttentionParams& params, const HeadsView& k, const HeadsView& v) {
    rope_and_write({}, params, {}, nullptr, k, v);
  }
  // The type of paged_attention's output where the next layer reads `next`.
  virtual DType attention_output_type(const AttentionParams& /*params*/, DType /*next*/) const {
    return DType::kFloat32;
  }
  // out [rows, heads, value_dim], float32 or of an attention_output_type
  virtual void paged_attention(const AttentionParams& params, const HeadsView& q, const TypedRows& out) = 0;
  // y = the linear layer of paged_attention's output, or y +=. `workspace` [rows, heads, value_dim] is overwritten.
  void project_attention(const AttentionParams& params, const HeadsView& q, float* workspace,
                         const LinearWeight& weight, float* y, bool accumulate) {
    const TypedRows attention_output(workspace, attention_output_type(params, types_of(weight, q.rows).rows));
    paged_attention(params, q, attention_output);
    linear(weight, ConstTypedRows(attention_output.data, attention_output.type), q.rows, y, accumulate);
  }

  // Rows beyond the step's, where padded_rows adds some, go to no expert: -1.
  virtual void route(const RouterParams& params, const float* logits, int rows, int32_t* experts, float* weights) = 0;
  // `experts` (host) stays where it is as long as it is used.
  virtual void add_experts(Activation activation, const std::vector<ExpertWeight>& experts, const float* x, int rows,
                           int top_k, const int32_t* chosen, const float* weights, float* y) = 0;
};

// Workspace for float32 [rows, width].
inline AlignedBuffer float_buffer(Operators& ops, int rows, int width) {
  return ops.allocate(static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float));
}

// A copy of the host's data in the device's memory.
template <class T>
AlignedBuffer uploaded(Operators& ops, const std::vector<T>& data) {
  if (data.empty()) return {};
  AlignedBuffer buffer = ops.allocate(data.size() * sizeof(T));
  ops.upload(data.data(), buffer.size(), buffer.as<void>());
  ops.wait();  // `data` may go
  return buffer;
}

// Step inputs that the host prepares and the device reads. Each upload is of new content: what was uploaded before the
// last time must have reached the device when the next content is written.
class Staged {
 public:
  Staged() = default;
  // All zeros on the device at first.
  Staged(Operators& ops, size_t bytes) : hosts_{ops.allocate_staging(bytes), {}} {
    if (ops.shares_host_memory()) return;
    hosts_[1] = ops.allocate_staging(bytes);
    device_ = ops.allocate(bytes);
    ops.fill_zero(device_.as<void>(), bytes);
  }

  size_t size() const { return hosts_[0].size(); }
  // Where to write what comes next.
  template <class T>
  T* host() const {
    return hosts_[next_].as<T>();
  }
  template <class T>
  T* device() const {
    return device_.size() > 0 ? device_.as<T>() : host<T>();
  }
  // Brings the first `bytes` to the device.
  void upload(Operators& ops, size_t bytes) {
    if (device_.size() == 0) return;
    ops.upload_staged(host<void>(), bytes, device_.as<void>());
    next_ = 1 - next_;
  }

 private:
  std::array<AlignedBuffer, 2> hosts_;
  size_t next_ = 0;
  AlignedBuffer device_;  // empty where the host's memory is the device's
};

}  // namespace turbomind
