#include "model/spec/model_spec.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace turbomind {

namespace {

constexpr int kFormat = 2;
constexpr int kMostLayers = 1 << 14;  // beyond any model; lists of a value a layer stay small

int number(const Json& json, const char* key) {
  const int64_t value = json.at(key).as_int();
  if (value < 0 || value > (int64_t{1} << 30)) {
    throw invalid_argument(std::string(key) + " must be a number >= 0, got " + std::to_string(value));
  }
  return static_cast<int>(value);
}

int positive(const Json& json, const char* key) {
  const int value = number(json, key);
  if (value == 0) throw invalid_argument(std::string(key) + " must be >= 1, got 0");
  return value;
}

float real(const Json& json, const char* key) {
  return static_cast<float>(json.at(key).as_double());
}

std::vector<float> reals(const Json& json, const char* key) {
  std::vector<float> values;
  for (const Json& value : json.at(key).as_array()) values.push_back(static_cast<float>(value.as_double()));
  return values;
}

// An entry for each layer; an empty list in the file means `fallback` everywhere.
std::vector<int> for_layers(const Json& json, const char* key, int layers, int fallback) {
  std::vector<int> values;
  for (const Json& value : json.at(key).as_array()) values.push_back(static_cast<int>(value.as_int()));
  if (values.empty()) values.assign(static_cast<size_t>(layers), fallback);
  if (values.size() != static_cast<size_t>(layers)) {
    throw invalid_argument(std::string(key) + " must have a value for each layer");
  }
  return values;
}

template <class Enum, size_t n>
Enum choice(const Json& json, const char* key, const std::array<std::pair<const char*, Enum>, n>& choices) {
  const std::string& given = json.at(key).as_string();
  std::string known;
  for (const auto& [name, value] : choices) {
    if (given == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  throw invalid_argument(std::string(key) + " must be one of " + known + ", got " + given);
}

constexpr std::array<std::pair<const char*, NormKind>, 2> kNormKinds{
    {{"rms", NormKind::kRms}, {"layer", NormKind::kLayer}}};
constexpr std::array<std::pair<const char*, Activation>, 6> kActivations{
    {{"silu", Activation::kSilu},
     {"gelu", Activation::kGelu},
     {"gelu_tanh", Activation::kGeluTanh},
     {"relu", Activation::kRelu},
     {"relu2", Activation::kRelu2},
     {"clamped_swiglu", Activation::kClampedSwiglu}}};
constexpr std::array<std::pair<const char*, QkNorm>, 3> kQkNorms{
    {{"none", QkNorm::kNone}, {"head", QkNorm::kHead}, {"projection", QkNorm::kProjection}}};
constexpr std::array<std::pair<const char*, StretchKind>, 3> kStretchKinds{
    {{"dynamic", StretchKind::kDynamic}, {"qwen", StretchKind::kQwen}, {"long", StretchKind::kLong}}};
constexpr std::array<std::pair<const char*, RouterScore>, 3> kRouterScores{
    {{"softmax", RouterScore::kSoftmax},
     {"sigmoid", RouterScore::kSigmoid},
     {"sparsemixer", RouterScore::kSparsemixer}}};
constexpr std::array<std::pair<const char*, GroupScore>, 2> kGroupScores{
    {{"max", GroupScore::kMax}, {"top2", GroupScore::kTop2}}};

NormSpec read_norm(const Json& json) {
  return {real(json, "eps"), choice(json, "kind", kNormKinds), real(json, "offset"), json.at("bias").as_bool()};
}

BlockSpec read_block(const Json& json) {
  return {json.at("is_parallel").as_bool(), json.at("shares_norm").as_bool(), json.at("has_output_norms").as_bool(),
          real(json, "residual_scale")};
}

MlpSpec read_mlp(const Json& json) {
  return {choice(json, "activation", kActivations), json.at("is_gated").as_bool(), json.at("bias").as_bool()};
}

RouterSpec read_router(const Json& json) {
  return {choice(json, "score", kRouterScores),
          json.at("normalizes").as_bool(),
          real(json, "scale"),
          positive(json, "groups"),
          positive(json, "top_groups"),
          choice(json, "group_score", kGroupScores),
          json.at("has_correction").as_bool(),
          json.at("bias").as_bool(),
          real(json, "jitter")};
}

MoeSpec read_moe(const Json& json, int layers) {
  MoeSpec moe;
  moe.num_experts = positive(json, "num_experts");
  moe.experts_per_token = positive(json, "experts_per_token");
  moe.intermediate_size = positive(json, "intermediate_size");
  moe.router = read_router(json.at("router"));
  for (const Json& has_experts : json.at("layers").as_array()) moe.layers.push_back(has_experts.as_bool());
  if (moe.layers.empty()) moe.layers.assign(static_cast<size_t>(layers), true);
  if (moe.layers.size() != static_cast<size_t>(layers))
    throw invalid_argument("moe.layers must have num_layers values");
  moe.shared_intermediate_size = number(json, "shared_intermediate_size");
  moe.has_shared_gate = json.at("has_shared_gate").as_bool();
  return moe;
}

MlaSpec read_mla(const Json& json) {
  return {positive(json, "kv_rank"),  number(json, "q_rank"),      positive(json, "nope_dim"),
          positive(json, "rope_dim"), positive(json, "value_dim"), real(json, "norm_eps")};
}

AttentionSpec read_attention(const Json& json, int layers) {
  AttentionSpec attention;
  attention.scale = real(json, "scale");
  attention.qkv_bias = json.at("qkv_bias").as_bool();
  attention.o_bias = json.at("o_bias").as_bool();
  attention.qk_norm = choice(json, "qk_norm", kQkNorms);
  attention.qkv_clip = real(json, "qkv_clip");
  attention.softcap = real(json, "softcap");
  attention.windows = for_layers(json, "windows", layers, 0);
  attention.alibi_slopes = reals(json, "alibi_slopes");
  attention.has_sinks = json.at("has_sinks").as_bool();
  attention.logn_length = number(json, "logn_length");
  if (const Json* mla = json.find("mla")) attention.mla = read_mla(*mla);
  return attention;
}

StretchSpec read_stretch(const Json& json) {
  return {choice(json, "kind", kStretchKinds), positive(json, "length"), real(json, "factor"), reals(json, "inv_freq")};
}

RopeSpec read_rope(const Json& json) {
  RopeSpec rope;
  rope.theta = json.at("theta").as_double();
  rope.inv_freq = reals(json, "inv_freq");
  rope.attention_scaling = real(json, "attention_scaling");
  rope.is_interleaved = json.at("is_interleaved").as_bool();
  if (const Json* axes = json.find("axes")) {
    for (const Json& axis : axes->as_array()) rope.axes.push_back(static_cast<int32_t>(axis.as_int()));
  }
  if (const Json* stretch = json.find("stretch")) rope.stretch = read_stretch(*stretch);
  return rope;
}

PicturesSpec read_pictures(const Json& json) {
  PicturesSpec pictures{number(json, "deepstack_layers"), number(json, "whole_rows"), {}};
  if (const Json* layers = json.find("cross_layers")) {
    for (const Json& layer : layers->as_array()) pictures.cross_layers.push_back(static_cast<int>(layer.as_int()));
  }
  return pictures;
}

constexpr std::array<std::pair<const char*, HeadKind>, 3> kHeadKinds{
    {{"mtp", HeadKind::kMtp}, {"eagle", HeadKind::kEagle}, {"eagle3", HeadKind::kEagle3}}};

HeadSpec read_head(const Json& json) {
  HeadSpec head{
      choice(json, "kind", kHeadKinds), positive(json, "target_hidden_size"), {}, json.at("bias").as_bool(), {}};
  for (const Json& layer : json.at("target_layers").as_array())
    head.target_layers.push_back(static_cast<int>(layer.as_int()));
  for (const Json& token : json.at("tokens").as_array()) head.tokens.push_back(static_cast<int32_t>(token.as_int()));
  return head;
}

OutputSpec read_output(const Json& json) {
  return {real(json, "scale"), real(json, "softcap"), json.at("bias").as_bool(),
          json.at("normalizes_weight").as_bool()};
}

void check(const MoeSpec& moe) {
  const RouterSpec& router = moe.router;
  if (moe.num_experts % router.groups != 0 || router.top_groups > router.groups ||
      moe.experts_per_token > moe.num_experts / router.groups * router.top_groups) {
    throw invalid_argument("moe.experts_per_token must be at most the experts to choose from");
  }
}

// Layers that look at pictures are plain ones, whose keys and values fit into the blocks of the others.
void check_cross_layers(const ModelSpec& spec) {
  const std::vector<int>& layers = spec.pictures->cross_layers;
  if (layers.empty()) return;
  if (!std::ranges::is_sorted(layers) || layers.front() < 0 || layers.back() >= spec.num_layers ||
      static_cast<int>(layers.size()) > spec.num_layers) {
    throw invalid_argument("pictures.cross_layers must be layers, ascending, and at most num_layers");
  }
  if (spec.attention.mla || spec.moe || spec.block.is_parallel || spec.block.has_output_norms ||
      spec.block.residual_scale != 1 || spec.pictures->deepstack_layers > 0 || spec.pictures->whole_rows > 0 ||
      std::ranges::any_of(spec.attention.windows, [](int window) { return window > 0; })) {
    throw invalid_argument(
        "pictures.cross_layers cannot be had with attention.mla, attention.windows, moe, other blocks than sequential "
        "ones, or other pictures.*");
  }
}

void check(const HeadSpec& head, const ModelSpec& spec) {
  if (spec.attention.mla && head.kind == HeadKind::kEagle3)
    throw invalid_argument("head.kind eagle3 with attention.mla");
  if (spec.block.is_parallel) throw invalid_argument("head with block.is_parallel");
  if (head.kind != HeadKind::kEagle3 && head.width() != spec.hidden_size) {
    throw invalid_argument("head.target_hidden_size must be hidden_size, without head.target_layers");
  }
  if (std::ranges::any_of(head.tokens, [&](int32_t token) { return token < 0 || token >= spec.vocab_size; })) {
    throw invalid_argument("head.tokens must be tokens of the vocabulary");
  }
}

void check(const ModelSpec& spec) {
  if (spec.head) check(*spec.head, spec);
  if (spec.moe) check(*spec.moe);
  if (spec.pictures) check_cross_layers(spec);
  if (spec.pictures && spec.pictures->deepstack_layers > spec.num_layers) {
    throw invalid_argument("pictures.deepstack_layers must be at most num_layers");
  }
  if (spec.pictures && spec.pictures->whole_rows > 0 && !spec.attention.alibi_slopes.empty()) {
    throw invalid_argument("pictures.whole_rows cannot be had with attention.alibi_slopes");
  }
  if (spec.num_heads % spec.num_kv_heads != 0) throw invalid_argument("num_heads must be a multiple of num_kv_heads");
  const int rotated = spec.attention.mla ? spec.attention.mla->rope_dim : spec.head_dim;
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.inv_freq.empty() || 2 * rope.inv_freq.size() > static_cast<size_t>(rotated)) {
      throw invalid_argument("rope.inv_freq must have 1 to head_dim / 2 values");
    }
    if (!rope.axes.empty() &&
        (rope.axes.size() != rope.inv_freq.size() || rope.stretch.kind != StretchKind::kNone ||
         std::any_of(rope.axes.begin(), rope.axes.end(), [](int axis) { return axis < 0 || axis > 2; }))) {
      throw invalid_argument("rope.axes must have as many values from 0 to 2 as rope.inv_freq, without a stretch");
    }
    if (rope.stretch.kind == StretchKind::kLong && rope.stretch.inv_freq.size() != rope.inv_freq.size()) {
      throw invalid_argument("rope.stretch.inv_freq must have as many values as rope.inv_freq");
    }
  }
  for (const int rope : spec.layer_ropes) {
    if (rope < -1 || rope >= static_cast<int>(spec.ropes.size())) throw invalid_argument("layer_ropes: no such rope");
  }
  if (const size_t slopes = spec.attention.alibi_slopes.size();
      slopes != 0 && slopes != static_cast<size_t>(spec.num_heads)) {
    throw invalid_argument("attention.alibi_slopes must have num_heads values");
  }
}

ModelSpec read(const Json& json) {
  if (json.at("format").as_int() != kFormat) {
    throw invalid_argument("format is not " + std::to_string(kFormat) + "; convert the model again");
  }
  ModelSpec spec;
  spec.architecture = json.at("architecture").as_string();
  spec.model_name = json.at("model_name").as_string();
  spec.dtype = json.at("dtype").as_string();
  spec.vocab_size = positive(json, "vocab_size");
  spec.hidden_size = positive(json, "hidden_size");
  spec.num_layers = positive(json, "num_layers");
  if (spec.num_layers > kMostLayers) throw invalid_argument("num_layers is " + std::to_string(spec.num_layers));
  spec.intermediate_size = positive(json, "intermediate_size");
  spec.num_heads = positive(json, "num_heads");
  spec.num_kv_heads = positive(json, "num_kv_heads");
  spec.head_dim = positive(json, "head_dim");
  spec.norm = read_norm(json.at("norm"));
  spec.block = read_block(json.at("block"));
  spec.mlp = read_mlp(json.at("mlp"));
  if (const Json* moe = json.find("moe")) spec.moe = read_moe(*moe, spec.num_layers);
  spec.attention = read_attention(json.at("attention"), spec.num_layers);
  for (const Json& rope : json.at("ropes").as_array()) spec.ropes.push_back(read_rope(rope));
  spec.layer_ropes = for_layers(json, "layer_ropes", spec.num_layers, spec.ropes.empty() ? -1 : 0);
  spec.output = read_output(json.at("output"));
  spec.embedding_scale = real(json, "embedding_scale");
  if (const Json* pictures = json.find("pictures")) spec.pictures = read_pictures(*pictures);
  if (const Json* head = json.find("head")) spec.head = read_head(*head);
  spec.tied_embeddings = json.at("tied_embeddings").as_bool();
  spec.max_position_embeddings = positive(json, "max_position_embeddings");
  if (const Json* bos = json.find("bos_token_id")) spec.bos_token_id = static_cast<int>(bos->as_int());
  for (const Json& eos : json.at("eos_token_ids").as_array())
    spec.eos_token_ids.push_back(static_cast<int32_t>(eos.as_int()));
  check(spec);
  return spec;
}

}  // namespace

ModelSpec ModelSpec::from_file(const std::string& path) {
  try {
    return read(Json::parse_file(path));
  } catch (const Error& error) {
    throw Error(error.code(), path + ": " + error.what());
  }
}

}  // namespace turbomind
