#include "model/model_spec.h"

#include "base/error.h"
#include "base/json.h"

namespace turbomind {

namespace {

constexpr int kFormat = 1;

int positive(const Json& json, const char* key) {
  const int64_t value = json.at(key).as_int();
  if (value < 1 || value > (int64_t{1} << 30)) {
    throw invalid_argument(std::string(key) + " must be a positive number, got " + std::to_string(value));
  }
  return static_cast<int>(value);
}

ModelSpec read(const Json& json) {
  if (json.at("format").as_int() != kFormat) throw invalid_argument("format is not 1; convert the model again");
  ModelSpec spec;
  spec.architecture = json.at("architecture").as_string();
  spec.model_name = json.at("model_name").as_string();
  spec.dtype = json.at("dtype").as_string();
  spec.vocab_size = positive(json, "vocab_size");
  spec.hidden_size = positive(json, "hidden_size");
  spec.num_layers = positive(json, "num_layers");
  spec.intermediate_size = positive(json, "intermediate_size");
  spec.num_heads = positive(json, "num_heads");
  spec.num_kv_heads = positive(json, "num_kv_heads");
  spec.head_dim = positive(json, "head_dim");
  spec.norm_eps = static_cast<float>(json.at("norm").at("eps").as_double());
  if (const std::string& activation = json.at("mlp").at("activation").as_string(); activation != "silu") {
    throw invalid_argument("mlp.activation must be silu, got " + activation);
  }
  const Json& attention = json.at("attention");
  spec.qkv_bias = attention.at("qkv_bias").as_bool();
  spec.o_bias = attention.at("o_bias").as_bool();
  spec.attention_scale = static_cast<float>(attention.at("scale").as_double());
  const Json& rope = json.at("rope");
  for (const Json& frequency : rope.at("inv_freq").as_array()) {
    spec.rope_inv_freq.push_back(static_cast<float>(frequency.as_double()));
  }
  spec.rope_attention_scaling = static_cast<float>(rope.at("attention_scaling").as_double());
  spec.tied_embeddings = json.at("tied_embeddings").as_bool();
  spec.max_position_embeddings = positive(json, "max_position_embeddings");
  if (const Json* bos = json.find("bos_token_id")) spec.bos_token_id = static_cast<int>(bos->as_int());
  for (const Json& eos : json.at("eos_token_ids").as_array())
    spec.eos_token_ids.push_back(static_cast<int32_t>(eos.as_int()));

  if (spec.num_heads % spec.num_kv_heads != 0) throw invalid_argument("num_heads must be a multiple of num_kv_heads");
  if (spec.head_dim % 2 != 0) throw invalid_argument("head_dim must be even");
  if (static_cast<int>(spec.rope_inv_freq.size()) != spec.head_dim / 2) {
    throw invalid_argument("rope.inv_freq must have head_dim / 2 values");
  }
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
