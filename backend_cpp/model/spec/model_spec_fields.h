// What one decoder model is: sizes and the choices in which families differ.
// Written by `make fields` from lmdeploy/turbomind/spec/; change that.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/recurrence.h"
#include "model/spec/spec_rules.h"

namespace turbomind {

inline constexpr std::array<std::pair<std::string_view, NormKind>, 2> kNormKindNames{
    {{"rms", NormKind::kRms}, {"layer", NormKind::kLayer}}};
enum class QkNorm : uint8_t { kNone, kHead, kEachHead, kProjection, kUnit };
inline constexpr std::array<std::pair<std::string_view, QkNorm>, 5> kQkNormNames{{{"none", QkNorm::kNone},
                                                                                  {"head", QkNorm::kHead},
                                                                                  {"each_head", QkNorm::kEachHead},
                                                                                  {"projection", QkNorm::kProjection},
                                                                                  {"unit", QkNorm::kUnit}}};
inline constexpr std::array<std::pair<std::string_view, Activation>, 6> kActivationNames{
    {{"silu", Activation::kSilu},
     {"gelu", Activation::kGelu},
     {"gelu_tanh", Activation::kGeluTanh},
     {"relu", Activation::kRelu},
     {"relu2", Activation::kRelu2},
     {"clamped_swiglu", Activation::kClampedSwiglu}}};
inline constexpr std::array<std::pair<std::string_view, RouterScore>, 3> kRouterScoreNames{
    {{"softmax", RouterScore::kSoftmax},
     {"sigmoid", RouterScore::kSigmoid},
     {"sparsemixer", RouterScore::kSparsemixer}}};
inline constexpr std::array<std::pair<std::string_view, GroupScore>, 2> kGroupScoreNames{
    {{"max", GroupScore::kMax}, {"top2", GroupScore::kTop2}}};
enum class RecurrenceKind : uint8_t { kGatedDelta, kKimiDelta, kMamba2, kLightning, kShortConvolution };
inline constexpr std::array<std::pair<std::string_view, RecurrenceKind>, 5> kRecurrenceKindNames{
    {{"gated_delta", RecurrenceKind::kGatedDelta},
     {"kimi_delta", RecurrenceKind::kKimiDelta},
     {"mamba2", RecurrenceKind::kMamba2},
     {"lightning", RecurrenceKind::kLightning},
     {"short_convolution", RecurrenceKind::kShortConvolution}}};
enum class RecurrenceNorm : uint8_t { kHead, kGroups, kNone };
inline constexpr std::array<std::pair<std::string_view, RecurrenceNorm>, 3> kRecurrenceNormNames{
    {{"head", RecurrenceNorm::kHead}, {"groups", RecurrenceNorm::kGroups}, {"none", RecurrenceNorm::kNone}}};
inline constexpr std::array<std::pair<std::string_view, GateKind>, 3> kGateKindNames{
    {{"sigmoid", GateKind::kSigmoid}, {"silu", GateKind::kSilu}, {"linear", GateKind::kLinear}}};
enum class StretchKind : uint8_t { kDynamic, kQwen, kLong };
inline constexpr std::array<std::pair<std::string_view, StretchKind>, 3> kStretchKindNames{
    {{"dynamic", StretchKind::kDynamic}, {"qwen", StretchKind::kQwen}, {"long", StretchKind::kLong}}};
enum class HeadKind : uint8_t { kMtp, kEagle, kEagle3 };
inline constexpr std::array<std::pair<std::string_view, HeadKind>, 3> kHeadKindNames{
    {{"mtp", HeadKind::kMtp}, {"eagle", HeadKind::kEagle}, {"eagle3", HeadKind::kEagle3}}};
enum class TextPooling : uint8_t { kFirst, kLast, kMean, kMeanSqrt, kMax, kWeightedMean };
inline constexpr std::array<std::pair<std::string_view, TextPooling>, 6> kTextPoolingNames{
    {{"first", TextPooling::kFirst},
     {"last", TextPooling::kLast},
     {"mean", TextPooling::kMean},
     {"mean_sqrt", TextPooling::kMeanSqrt},
     {"max", TextPooling::kMax},
     {"weighted_mean", TextPooling::kWeightedMean}}};
enum class Mixer : uint8_t { kAttention, kRecurrence, kBoth, kNone };
inline constexpr std::array<std::pair<std::string_view, Mixer>, 4> kMixerNames{{{"attention", Mixer::kAttention},
                                                                                {"recurrence", Mixer::kRecurrence},
                                                                                {"both", Mixer::kBoth},
                                                                                {"none", Mixer::kNone}}};

// Every norm of the model.
struct NormSpec {
  // Added to the mean square (`rms`) or variance (`layer`).
  float eps = 0;
  // `rms`: `x / sqrt(mean(x^2) + eps)`; `layer`: the same after the mean is taken off.
  NormKind kind = NormKind::kRms;
  // Added to every weight (Gemma: 1).
  float offset = 0;
  // Whether norms have a bias. Norms of queries and keys never do.
  bool bias = false;
};

template <class Visit>
void visit_fields(NormSpec& part, Visit&& visit) {
  visit.required("eps", part.eps, Real{0, true});
  visit.optional("kind", part.kind, kNormKindNames);
  visit.optional("offset", part.offset, Real{});
  visit.optional("bias", part.bias, Anything{});
}

// Sparse attention (DeepSeek-V3.2): a scorer of small heads chooses the tokens that a token attends to.
struct IndexerSpec {
  // How many are chosen; a token that sees no more attends to all of them.
  int top_k = 0;
  // Index queries of a token, and the size of these and of its one index key.
  int num_heads = 0;
  int head_dim = 0;
  // Whether their rotation takes neighbours as pairs, as RopeSpec.is_interleaved.
  bool is_interleaved = false;
  // Of the LayerNorm of the keys.
  float norm_eps = 0;
  // Which layers choose; the others attend to what the last one before chose.
  std::vector<bool> layers;
};

template <class Visit>
void visit_fields(IndexerSpec& part, Visit&& visit) {
  visit.required("top_k", part.top_k, Whole{1, 134217728});
  visit.required("num_heads", part.num_heads, Whole{1, 134217728});
  visit.required("head_dim", part.head_dim, Whole{1, 134217728});
  visit.required("is_interleaved", part.is_interleaved, Anything{});
  visit.required("norm_eps", part.norm_eps, Real{0, true});
  visit.optional("layers", part.layers, Anything{}, PerLayer{bool{true}});
}

// Multi-head latent attention (DeepSeek-V2): keys and values come out of one small vector a token.
struct MlaSpec {
  // Size of that vector.
  int kv_rank = 0;
  // Size of the vector queries come out of; 0: they come from the hidden state.
  int q_rank = 0;
  // Parts of a query and key head without and with rotation; the rotated part of the key is one for all heads.
  int nope_dim = 0;
  int rope_dim = 0;
  // Size of a value head.
  int value_dim = 0;
  // Of the norms of the two vectors.
  float norm_eps = 0;
  // What chooses the tokens that a token attends to; None: it attends to all before it.
  std::optional<IndexerSpec> indexer;
};

template <class Visit>
void visit_fields(MlaSpec& part, Visit&& visit) {
  visit.required("kv_rank", part.kv_rank, Whole{1, 134217728});
  visit.required("q_rank", part.q_rank, Whole{0, 134217728});
  visit.required("nope_dim", part.nope_dim, Whole{1, 134217728});
  visit.required("rope_dim", part.rope_dim, Whole{1, 134217728});
  visit.required("value_dim", part.value_dim, Whole{1, 134217728});
  visit.required("norm_eps", part.norm_eps, Real{0, true});
  visit.optional("indexer", part.indexer, Anything{});
}

// What attention does alongside `softmax(scale q k) v`.
struct AttentionSpec {
  // Factor of q·k.
  float scale = 0;
  // Query heads, key and value heads, and the size of a head, in layers of this kind; 0: the model's.
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  // Size of a value head; 0: as large as a head.
  int value_dim = 0;
  // Which projections have a bias.
  bool qkv_bias = false;
  bool o_bias = false;
  // Norm of queries and keys: `none`, `head` (each head, one weight for all), `each_head` (each head, with a weight
  // of its own), `projection` (all heads together), `unit` (each head without a weight, in layers that rotate; Llama
  // 4).
  QkNorm qk_norm = QkNorm::kNone;
  // That norm follows rotation; otherwise rotation follows it.
  bool norms_rotated = false;
  // Each head of values goes through a norm without a weight.
  bool norms_values = false;
  // One projection makes keys and values, which differ by norms and rotation alone: its rows stand twice in `qkv`.
  bool keys_are_values = false;
  // Queries, keys and values are kept in [-qkv_clip, qkv_clip]; 0: they stay.
  float qkv_clip = 0;
  // Scores become `softcap tanh(score / softcap)`; 0: they stay.
  float softcap = 0;
  // For each layer of the model, how many of the last positions a token sees, itself included; 0: all. Empty: all,
  // everywhere. Those of layers of another kind are not read. In an encoder a token sees as many of the next.
  std::vector<int> windows;
  // Whether windows are chunks, counted from position 0: a token sees those of its own chunk up to itself.
  bool is_chunked = false;
  // Tokens of an image see what is before them alone, where `images.whole_rows` has other layers see all of it.
  bool is_causal_in_images = false;
  // For each head the amount taken off a score for each position of distance; empty: none.
  std::vector<float> alibi_slopes;
  // Each head has a learned bias of a score for each distance from a token to another, as far as this to both sides,
  // and beyond it the last; 0: none (MPNet).
  int bias_reach = 0;
  // Whether each head has a learned logit that takes its share of the softmax and gives nothing.
  bool has_sinks = false;
  // From this position on, queries are multiplied by log(position + 1) / log(logn_length); 0: never.
  int logn_length = 0;
  // Queries are multiplied by 1 + temperature_scale log(1 + floor(position / temperature_length)); length 0: never.
  int temperature_length = 0;
  float temperature_scale = 0;
  // Only layers that do not rotate do so, and count positions from 1 (Llama 4).
  bool tempers_unrotated = false;
  // What attention gives is multiplied by the sigmoid of a gate, as many rows of `qkv` after the values as there are
  // of queries (Qiu et al., 2025, arXiv 2505.06708).
  bool has_output_gate = false;
  // Factor of values.
  float value_scale = 1;
  // Multi-head latent attention instead of plain key and value heads.
  std::optional<MlaSpec> mla;
};

template <class Visit>
void visit_fields(AttentionSpec& part, Visit&& visit) {
  visit.required("scale", part.scale, Real{0, true});
  visit.optional("num_heads", part.num_heads, Whole{0, 134217728});
  visit.optional("num_kv_heads", part.num_kv_heads, Whole{0, 134217728});
  visit.optional("head_dim", part.head_dim, Whole{0, 134217728});
  visit.optional("value_dim", part.value_dim, Whole{0, 134217728});
  visit.optional("qkv_bias", part.qkv_bias, Anything{});
  visit.optional("o_bias", part.o_bias, Anything{});
  visit.optional("qk_norm", part.qk_norm, kQkNormNames);
  visit.optional("norms_rotated", part.norms_rotated, Anything{});
  visit.optional("norms_values", part.norms_values, Anything{});
  visit.optional("keys_are_values", part.keys_are_values, Anything{});
  visit.optional("qkv_clip", part.qkv_clip, Real{0, false});
  visit.optional("softcap", part.softcap, Real{0, false});
  visit.optional("windows", part.windows, Whole{0, 134217728}, PerLayer{int{0}});
  visit.optional("is_chunked", part.is_chunked, Anything{});
  visit.optional("is_causal_in_images", part.is_causal_in_images, Anything{});
  visit.optional("alibi_slopes", part.alibi_slopes, Real{});
  visit.optional("bias_reach", part.bias_reach, Whole{0, 134217728});
  visit.optional("has_sinks", part.has_sinks, Anything{});
  visit.optional("logn_length", part.logn_length, Whole{0, 134217728});
  visit.optional("temperature_length", part.temperature_length, Whole{0, 134217728});
  visit.optional("temperature_scale", part.temperature_scale, Real{0, false});
  visit.optional("tempers_unrotated", part.tempers_unrotated, Anything{});
  visit.optional("has_output_gate", part.has_output_gate, Anything{});
  visit.optional("value_scale", part.value_scale, Real{0, true});
  visit.optional("mla", part.mla, Anything{});
}

// How attention and MLP of a layer are joined to the residual stream.
struct BlockSpec {
  // Both read the layer's input; otherwise the MLP reads what attention has added to it.
  bool is_parallel = false;
  // One input norm serves both. Only with `is_parallel`.
  bool shares_norm = false;
  // What attention and MLP read goes through its own norm. Only with `has_output_norms` it may be missing.
  bool has_input_norms = true;
  // The first layer's attention reads the embeddings as they are. Only where attention and MLP have norms of their
  // own in front.
  bool skips_first_norm = false;
  // What attention and MLP give goes through a norm of its own before it is added.
  bool has_output_norms = false;
  // Factor of what attention and MLP add.
  float residual_scale = 1;
  // The residual stream itself goes through the norms in front of attention and MLP (MiniMax-Text-01).
  bool norms_stream = false;
  // Factor of the residual stream that is added to.
  float stream_scale = 1;
  // What a layer hands on is multiplied by a learned number (Gemma 4).
  bool has_layer_scale = false;
};

template <class Visit>
void visit_fields(BlockSpec& part, Visit&& visit) {
  visit.optional("is_parallel", part.is_parallel, Anything{});
  visit.optional("shares_norm", part.shares_norm, Anything{});
  visit.optional("has_input_norms", part.has_input_norms, Anything{});
  visit.optional("skips_first_norm", part.skips_first_norm, Anything{});
  visit.optional("has_output_norms", part.has_output_norms, Anything{});
  visit.optional("residual_scale", part.residual_scale, Real{0, true});
  visit.optional("norms_stream", part.norms_stream, Anything{});
  visit.optional("stream_scale", part.stream_scale, Real{0, true});
  visit.optional("has_layer_scale", part.has_layer_scale, Anything{});
}

// Gated: `down(activation(gate(x)) * up(x))`; plain: `down(activation(up(x)))`.
struct MlpSpec {
  // `silu`, `gelu` (by the error function), `gelu_tanh`, `relu`, `relu2` (squared), or, gated only, `clamped_swiglu`:
  // `(up + 1) gate sigmoid(1.702 gate)` with gate at most 7 and up in [-7, 7] (GPT-OSS).
  Activation activation = Activation::kSilu;
  // Whether there is a gate.
  bool is_gated = true;
  // Whether the projections have biases.
  bool bias = false;
  // Whether the last one has, where the others have none. Not of experts.
  bool down_bias = false;
  // Factors of `gate(x)` and of `up(x)` of a gated MLP that is no expert.
  float gate_scale = 1;
  float up_scale = 1;
  // The activation is xIELU (Huang & Schlag, 2024, arXiv 2411.13010), whose factors each layer has learned, and
  // `activation` is not read. Only without a gate.
  bool is_xielu = false;
  // For each layer the size of its MLP; empty: the model's `intermediate_size`, everywhere.
  std::vector<int> sizes;
  // For each layer how many standard deviations above its mean `gate(x)` is cut, `max(gate(x) - cut, 0)`; 0: it
  // stays. Empty: everywhere (Gemma 3n). Only with a gate.
  std::vector<float> cuts;
};

template <class Visit>
void visit_fields(MlpSpec& part, Visit&& visit) {
  visit.optional("activation", part.activation, kActivationNames);
  visit.optional("is_gated", part.is_gated, Anything{});
  visit.optional("bias", part.bias, Anything{});
  visit.optional("down_bias", part.down_bias, Anything{});
  visit.optional("gate_scale", part.gate_scale, Real{0, true});
  visit.optional("up_scale", part.up_scale, Real{0, true});
  visit.optional("is_xielu", part.is_xielu, Anything{});
  visit.optional("sizes", part.sizes, Whole{1, 134217728});
  visit.optional("cuts", part.cuts, Real{0, false}, PerLayer{float{0}});
}

// How a mixture of experts chooses.
struct RouterSpec {
  // `softmax` over all experts, `sigmoid` of each, or `sparsemixer` (Phi-3.5-MoE).
  RouterScore score = RouterScore::kSoftmax;
  // Whether the chosen scores are divided by their sum.
  bool normalizes = false;
  // Factor of the chosen scores.
  float scale = 1;
  // Experts are in `groups` equal groups, and only those of the best `top_groups` are chosen from.
  int groups = 1;
  int top_groups = 1;
  // A group's worth: `max` of its scores, or the sum of its two best, `top2`.
  GroupScore group_score = GroupScore::kMax;
  // Whether a learned number is added to each score for the choice alone.
  bool has_correction = false;
  // Whether the router's linear layer has a bias.
  bool bias = false;
  // Whether the router reads the residual stream through a norm of its own, divided by `sqrt(hidden_size)`; otherwise
  // it reads what the experts do.
  bool has_input_norm = false;
  // Whether each chosen score is multiplied by a learned number of its expert.
  bool has_expert_scale = false;
  // Whether the input of a token's only expert is multiplied by its score, and not what comes out (Llama 4).
  bool scales_input = false;
  // Of `sparsemixer`: scores further than so much (relative) below the best are not softened.
  float jitter = 0;
};

template <class Visit>
void visit_fields(RouterSpec& part, Visit&& visit) {
  visit.optional("score", part.score, kRouterScoreNames);
  visit.optional("normalizes", part.normalizes, Anything{});
  visit.optional("scale", part.scale, Real{0, true});
  visit.optional("groups", part.groups, Whole{1, 134217728});
  visit.optional("top_groups", part.top_groups, Whole{1, 134217728});
  visit.optional("group_score", part.group_score, kGroupScoreNames);
  visit.optional("has_correction", part.has_correction, Anything{});
  visit.optional("bias", part.bias, Anything{});
  visit.optional("has_input_norm", part.has_input_norm, Anything{});
  visit.optional("has_expert_scale", part.has_expert_scale, Anything{});
  visit.optional("scales_input", part.scales_input, Anything{});
  visit.optional("jitter", part.jitter, Real{0, false});
}

// Layers whose MLP is a mixture of experts, each an MLP as `MlpSpec` says.
struct MoeSpec {
  // Experts in a layer, and those active for a token.
  int num_experts = 0;
  int experts_per_token = 0;
  // Of one expert.
  int intermediate_size = 0;
  // How they are chosen.
  RouterSpec router;
  // For each layer whether it has experts; empty: all have.
  std::vector<bool> layers;
  // Of the shared expert; 0: none.
  int shared_intermediate_size = 0;
  // Whether its output is multiplied by the sigmoid of a linear layer with one output.
  bool has_shared_gate = false;
  // Whether the experts' layers have a dense MLP too. Each of both reads the residual stream through a norm of its
  // own and gives through one, and the sum is what the layer's MLP gives (Gemma 4).
  bool is_alongside_mlp = false;
};

template <class Visit>
void visit_fields(MoeSpec& part, Visit&& visit) {
  visit.required("num_experts", part.num_experts, Whole{1, 4096});
  visit.required("experts_per_token", part.experts_per_token, Whole{1, 134217728});
  visit.required("intermediate_size", part.intermediate_size, Whole{1, 134217728});
  visit.optional("router", part.router, Anything{});
  visit.optional("layers", part.layers, Anything{}, PerLayer{bool{true}});
  visit.optional("shared_intermediate_size", part.shared_intermediate_size, Whole{0, 134217728});
  visit.optional("has_shared_gate", part.has_shared_gate, Anything{});
  visit.optional("is_alongside_mlp", part.is_alongside_mlp, Anything{});
}

// Layers that keep a state of a fixed size a sequence in place of keys and values of every token.
struct RecurrenceSpec {
  // `gated_delta`: the gated delta rule (Yang et al., 2024, arXiv 2412.06464), with queries and keys of length 1;
  // `kimi_delta`: the same with a decay for each channel of a key (Kimi Team, 2025, arXiv 2510.26692); `mamba2`:
  // state space duality (Dao & Gu, 2024, arXiv 2405.21060), whose C are the queries, B the keys and x the values;
  // `lightning`: decays that are constants (Qin et al., 2024, arXiv 2401.04658); `short_convolution`: nothing but a
  // gated convolution of values (LFM2).
  RecurrenceKind kind = RecurrenceKind::kGatedDelta;
  // Heads of values, each with a state, and of queries and keys, which neighbouring value heads share.
  int num_heads = 0;
  int num_key_heads = 0;
  // Sizes of a head; a state is a matrix `[key_dim, value_dim]`.
  int key_dim = 0;
  int value_dim = 0;
  // Tokens that the causal convolution of queries, keys and values looks at, the current one included; 1: there is no
  // convolution.
  int conv_kernel = 0;
  // Whether the convolution has a bias, and the linear layers before and after it.
  bool conv_bias = false;
  bool bias = false;
  // Of what comes out: `head` (each head, one weight for all), `groups` (equal parts of all heads, with a weight of
  // their own) or `none`.
  RecurrenceNorm norm = RecurrenceNorm::kHead;
  // How many parts.
  int norm_groups = 1;
  // Of that norm; 0: as of the others.
  float norm_eps = 0;
  // Function of the gate that what comes out is multiplied by: `silu`, `sigmoid` or `linear`.
  GateKind gate = GateKind::kSilu;
  // The norm follows the gate; otherwise the gate follows it.
  bool norms_gated = false;
  // Bounds of a step's length in `mamba2`; 0: none.
  float min_step = 0;
  float max_step = 0;
  // Factor of the strength that is written with in `gated_delta`.
  float write_scale = 1;
  // Of `kimi_delta`: size of the vectors that decays and the gate come out of.
  int gate_rank = 0;
  // Of `lightning`: for each head, and for each layer; the logarithm of a decay is minus their product.
  std::vector<float> slopes;
  std::vector<float> slope_factors;
  // Factors of what the linear layer in front gives, and of what goes into the one after it.
  float query_scale = 1;
  float key_scale = 1;
  float value_scale = 1;
  float gate_scale = 1;
  float step_scale = 1;
  float output_scale = 1;
};

template <class Visit>
void visit_fields(RecurrenceSpec& part, Visit&& visit) {
  visit.required("kind", part.kind, kRecurrenceKindNames);
  visit.required("num_heads", part.num_heads, Whole{1, 134217728});
  visit.required("num_key_heads", part.num_key_heads, Whole{1, 134217728});
  visit.required("key_dim", part.key_dim, Whole{1, 256});
  visit.required("value_dim", part.value_dim, Whole{1, 134217728});
  visit.required("conv_kernel", part.conv_kernel, Whole{1, 8});
  visit.optional("conv_bias", part.conv_bias, Anything{});
  visit.optional("bias", part.bias, Anything{});
  visit.optional("norm", part.norm, kRecurrenceNormNames);
  visit.optional("norm_groups", part.norm_groups, Whole{1, 134217728});
  visit.optional("norm_eps", part.norm_eps, Real{0, false});
  visit.optional("gate", part.gate, kGateKindNames);
  visit.optional("norms_gated", part.norms_gated, Anything{});
  visit.optional("min_step", part.min_step, Real{0, false});
  visit.optional("max_step", part.max_step, Real{0, false});
  visit.optional("write_scale", part.write_scale, Real{0, true});
  visit.optional("gate_rank", part.gate_rank, Whole{0, 134217728});
  visit.optional("slopes", part.slopes, Real{0, true});
  visit.optional("slope_factors", part.slope_factors, Real{0, true}, PerLayer{float{1}});
  visit.optional("query_scale", part.query_scale, Real{0, true});
  visit.optional("key_scale", part.key_scale, Real{0, true});
  visit.optional("value_scale", part.value_scale, Real{0, true});
  visit.optional("gate_scale", part.gate_scale, Real{0, true});
  visit.optional("step_scale", part.step_scale, Real{0, true});
  visit.optional("output_scale", part.output_scale, Real{0, true});
}

// Frequencies that depend on the length of a sequence's prompt, beyond `length`.
struct StretchSpec {
  // `dynamic`: theta grows with the prompt (NTK); `qwen`: it grows in powers of two (Qwen 1); `long`: other
  // frequencies, `inv_freq`, are used (longrope).
  StretchKind kind = StretchKind::kDynamic;
  // Longest prompt that is not stretched.
  int length = 0;
  // Of `dynamic`.
  float factor = 1;
  // Of `long`.
  std::vector<float> inv_freq;
};

template <class Visit>
void visit_fields(StretchSpec& part, Visit&& visit) {
  visit.required("kind", part.kind, kStretchKindNames);
  visit.required("length", part.length, Whole{1, 134217728});
  visit.optional("factor", part.factor, Real{1, false});
  visit.optional("inv_freq", part.inv_freq, Real{0, true});
}

// Rotary embedding of the first `2 len(inv_freq)` dimensions of a head, every static scaling already applied.
struct RopeSpec {
  // Base of the frequencies.
  double theta = 0;
  // Radians a position of each pair, float32 values; 0: the pair stays.
  std::vector<float> inv_freq;
  // Factor of cos and sin (YaRN, longrope).
  float attention_scaling = 1;
  // Pairs are neighbours, 2 i and 2 i + 1; otherwise i and i + len(inv_freq).
  bool is_interleaved = false;
  // What changes with the prompt's length.
  std::optional<StretchSpec> stretch;
  // Which of a position's three numbers (frame, row, column) turns each pair (M-RoPE; Wang et al., 2024, arXiv
  // 2409.12191); empty: positions have one number.
  std::vector<int> axes;
};

template <class Visit>
void visit_fields(RopeSpec& part, Visit&& visit) {
  visit.required("theta", part.theta, Real{0, true});
  visit.required("inv_freq", part.inv_freq, Real{0, false});
  visit.optional("attention_scaling", part.attention_scaling, Real{0, true});
  visit.optional("is_interleaved", part.is_interleaved, Anything{});
  visit.optional("stretch", part.stretch, Anything{});
  visit.optional("axes", part.axes, Whole{0, 2});
}

// From the last norm to logits: `softcap tanh(scale (x W + b) / softcap)`.
struct OutputSpec {
  // Factor of the logits.
  float scale = 1;
  // Bound of the logits; 0: none.
  float softcap = 0;
  // Whether the output layer has one.
  bool bias = false;
  // Whether each row of W is divided by its length first (Baichuan2).
  bool normalizes_weight = false;
};

template <class Visit>
void visit_fields(OutputSpec& part, Visit&& visit) {
  visit.optional("scale", part.scale, Real{0, true});
  visit.optional("softcap", part.softcap, Real{0, false});
  visit.optional("bias", part.bias, Anything{});
  visit.optional("normalizes_weight", part.normalizes_weight, Anything{});
}

// An input of each layer's own, made of a token's own embedding and of what the first layer reads (Gemma 3n).
struct LayerInputSpec {
  // Numbers of an input.
  int size = 0;
  // The token whose embedding in that table the rows of images have.
  int image_token = 0;
  // Rows of that table in the checkpoint, if there are fewer than tokens: further tokens read the first. 0: one for
  // each token.
  int vocab_size = 0;
};

template <class Visit>
void visit_fields(LayerInputSpec& part, Visit&& visit) {
  visit.required("size", part.size, Whole{1, 134217728});
  visit.optional("image_token", part.image_token, Whole{0, 134217728});
  visit.optional("vocab_size", part.vocab_size, Whole{0, 134217728});
}

// Several residual streams, of which layers compute on one (AltUp; Baykal et al., 2023, arXiv 2301.13310).
struct StreamsSpec {
  // Streams.
  int count = 0;
  // The one that layers compute on.
  int active = 0;
  // Of the low-rank branch.
  int branch_rank = 0;
};

template <class Visit>
void visit_fields(StreamsSpec& part, Visit&& visit) {
  visit.required("count", part.count, Whole{1, 134217728});
  visit.required("active", part.active, Whole{0, 134217728});
  visit.required("branch_rank", part.branch_rank, Whole{1, 134217728});
}

// A vision-language model: rows that a request brings may take the place of token embeddings, unscaled.
struct ImagesSpec {
  // After each of this many first layers, further numbers of an image's rows are added to the residual stream
  // (DeepStack; Meng et al., 2024, arXiv 2406.04334): a row is `(1 + deepstack_layers) hidden_size` wide.
  int deepstack_layers = 0;
  // Tokens of an image, where these see all of it; 0: they see what is before them, as those of text do.
  int whole_rows = 0;
  // In front of which layers are those that look at images by gated cross-attention, with a gated MLP (Alayrac et
  // al., 2022, arXiv 2204.14198; Llama 3.2 Vision), ascending; `num_layers` does not count them. An image has one
  // token then. Empty: images are among the tokens.
  std::vector<int> cross_layers;
  // Rows of images take other weights than those of text in the projections of attention (`qkv`, `o`), and in the MLP
  // (visual experts; Wang et al., 2023, arXiv 2311.03079).
  bool own_attention = false;
  bool own_mlp = false;
  // Those of `qkv` have a bias, where those of text have none.
  bool own_bias = false;
  // Of matrices that linear layers of attention and MLP add for rows of images (partial LoRA; Dong et al., 2024,
  // arXiv 2401.16420); 0: none.
  int low_rank = 0;
  // Rows that bring no place on a grid take what those of text do (the mark that ends a CogVLM image).
  bool own_on_grid = false;
};

template <class Visit>
void visit_fields(ImagesSpec& part, Visit&& visit) {
  visit.optional("deepstack_layers", part.deepstack_layers, Whole{0, 134217728});
  visit.optional("whole_rows", part.whole_rows, Whole{0, 134217728});
  visit.optional("cross_layers", part.cross_layers, Whole{0, 134217728});
  visit.optional("own_attention", part.own_attention, Anything{});
  visit.optional("own_mlp", part.own_mlp, Anything{});
  visit.optional("own_bias", part.own_bias, Anything{});
  visit.optional("low_rank", part.low_rank, Whole{0, 134217728});
  visit.optional("own_on_grid", part.own_on_grid, Anything{});
}

// Layers that draft for another model, out of its hidden states (`backend_cpp/model/head/head_input.h`).
struct HeadSpec {
  // `mtp` (DeepSeek-V3, Qwen3-Next, Qwen3.5), `eagle` or `eagle3`.
  HeadKind kind = HeadKind::kMtp;
  // Of the model.
  int target_hidden_size = 0;
  // In front of which of the model's layers hidden states are taken, joined; empty: after its last norm.
  std::vector<int> target_layers;
  // Whether the linear layer that joins hidden states and embeddings has one.
  bool bias = false;
  // Those it drafts among, in the order of its logits; empty: the whole vocabulary.
  std::vector<int> tokens;
};

template <class Visit>
void visit_fields(HeadSpec& part, Visit&& visit) {
  visit.required("kind", part.kind, kHeadKindNames);
  visit.required("target_hidden_size", part.target_hidden_size, Whole{1, 134217728});
  visit.optional("target_layers", part.target_layers, Whole{0, 134217728});
  visit.optional("bias", part.bias, Anything{});
  visit.optional("tokens", part.tokens, Whole{0, 134217728});
}

// A model that reads a text whole: each token attends to those after it as well, and nothing is generated.
struct EncoderSpec {
  // What that vector is made of the hidden states after the last norm: the `first`, the `last`, their `mean`, their
  // sum divided by the square root of their number (`mean_sqrt`), the `max` of each channel, or their mean weighted
  // with 1, 2, ... (`weighted_mean`).
  TextPooling pooling = TextPooling::kFirst;
  // Rows of a table, one of which is added to each token's embedding: the first to those of the first text of a pair,
  // the second to those of the other; 0: there is none.
  int token_types = 0;
};

template <class Visit>
void visit_fields(EncoderSpec& part, Visit&& visit) {
  visit.optional("pooling", part.pooling, kTextPoolingNames);
  visit.optional("token_types", part.token_types, Whole{0, 134217728});
}

// One parametric decoder. Constructing one that is invalid raises `ValueError` naming every reason.
struct ModelSpec {
  // As the checkpoint calls itself, and as users call the model.
  std::string architecture;
  std::string model_name;
  // Of the checkpoint.
  std::string dtype;
  // Rows of the token embedding, their width, and the layers that attend to text.
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  // Of an MLP that is no expert.
  int intermediate_size = 0;
  // Query heads, key and value heads, and the size of a head.
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  // What every layer consists of, where the fields below do not give some layers a kind of their own.
  NormSpec norm;
  AttentionSpec attention;
  // The longest sequence that the model is made for.
  int max_position_embeddings = 0;
  // Whether the output layer has the token embedding as its weight.
  bool tied_embeddings = false;
  // Of the token in front of a text; None: there is none.
  std::optional<int> bos_token_id;
  // Tokens that end a response.
  std::vector<int> eos_token_ids;
  // What every layer consists of, where the fields below do not give some layers a kind of their own.
  BlockSpec block;
  MlpSpec mlp;
  // Layers whose MLP is a mixture of experts; None: there are none.
  std::optional<MoeSpec> moe;
  // What each layer mixes tokens with: `attention`, `recurrence`, the sum of `both`, or `none`. Empty: attention,
  // everywhere.
  std::vector<Mixer> layer_mixers;
  // For each layer whether it has an MLP or experts. Empty: all have.
  std::vector<bool> layer_mlps;
  // Further kinds of attention, where layers differ in more than windows and rotation.
  std::vector<AttentionSpec> attentions;
  // For each layer its kind of attention: 0: `attention`, n: `attentions[n - 1]`. Empty: the first, everywhere.
  std::vector<int> layer_attentions;
  // For each layer the earlier one whose keys and values it attends to, in place of its own; -1: its own. Both are of
  // the same kind and have the same window. Empty: all have their own.
  std::vector<int> layer_keys;
  // What the layers with `recurrence` or `both` compute; None: there are none.
  std::optional<RecurrenceSpec> recurrence;
  // How the halves of layers with a recurrence are joined to the residual stream; None: as those of others.
  std::optional<BlockSpec> recurrence_block;
  // The rotary embeddings.
  std::vector<RopeSpec> ropes;
  // For each layer which of them it uses, -1: none. Empty: the first, if there is one.
  std::vector<int> layer_ropes;
  // From the last norm to logits.
  OutputSpec output;
  // Factor of the token embeddings.
  float embedding_scale = 1;
  // The embeddings go through a norm.
  bool has_embedding_norm = false;
  // A further input of each layer; None: there is none.
  std::optional<LayerInputSpec> layer_input;
  // Several residual streams; None: there is one.
  std::optional<StreamsSpec> streams;
  // Rows of a table with an embedding of each position, which is added to the token's; 0: there is none. No sequence
  // is longer.
  int learned_positions = 0;
  // How the model sees; None: it reads text only.
  std::optional<ImagesSpec> images;
  // Whose head it is; None: it is a model.
  std::optional<HeadSpec> head;
  // What a model that generates nothing makes of a text; None: it generates. Its output layer is not read.
  std::optional<EncoderSpec> encoder;
};

template <class Visit>
void visit_fields(ModelSpec& part, Visit&& visit) {
  visit.required("architecture", part.architecture, Anything{});
  visit.required("model_name", part.model_name, Anything{});
  visit.required("dtype", part.dtype, Anything{});
  visit.required("vocab_size", part.vocab_size, Whole{1, 134217728});
  visit.required("hidden_size", part.hidden_size, Whole{1, 134217728});
  visit.required("num_layers", part.num_layers, Whole{1, 4096});
  visit.required("intermediate_size", part.intermediate_size, Whole{1, 134217728});
  visit.required("num_heads", part.num_heads, Whole{1, 134217728});
  visit.required("num_kv_heads", part.num_kv_heads, Whole{1, 134217728});
  visit.required("head_dim", part.head_dim, Whole{1, 134217728});
  visit.required("norm", part.norm, Anything{});
  visit.required("attention", part.attention, Anything{});
  visit.required("max_position_embeddings", part.max_position_embeddings, Whole{1, 134217728});
  visit.required("tied_embeddings", part.tied_embeddings, Anything{});
  visit.optional("bos_token_id", part.bos_token_id, Anything{});
  visit.required("eos_token_ids", part.eos_token_ids, Anything{});
  visit.optional("block", part.block, Anything{});
  visit.optional("mlp", part.mlp, Anything{});
  visit.optional("moe", part.moe, Anything{});
  visit.optional("layer_mixers", part.layer_mixers, kMixerNames, PerLayer{Mixer{Mixer::kAttention}});
  visit.optional("layer_mlps", part.layer_mlps, Anything{}, PerLayer{bool{true}});
  visit.optional("attentions", part.attentions, Anything{});
  visit.optional("layer_attentions", part.layer_attentions, Whole{0, 134217728}, PerLayer{int{0}});
  visit.optional("layer_keys", part.layer_keys, Whole{-1, 134217728}, PerLayer{int{-1}});
  visit.optional("recurrence", part.recurrence, Anything{});
  visit.optional("recurrence_block", part.recurrence_block, Anything{});
  visit.optional("ropes", part.ropes, Anything{});
  visit.optional("layer_ropes", part.layer_ropes, Anything{});
  visit.optional("output", part.output, Anything{});
  visit.optional("embedding_scale", part.embedding_scale, Real{0, true});
  visit.optional("has_embedding_norm", part.has_embedding_norm, Anything{});
  visit.optional("layer_input", part.layer_input, Anything{});
  visit.optional("streams", part.streams, Anything{});
  visit.optional("learned_positions", part.learned_positions, Whole{0, 134217728});
  visit.optional("images", part.images, Anything{});
  visit.optional("head", part.head, Anything{});
  visit.optional("encoder", part.encoder, Anything{});
}

}  // namespace turbomind
