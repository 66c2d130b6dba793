// A model's description: fields by their declarations, what is left out, and what is refused; and its program.
#include "model/spec/model_spec.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/native_runner.h"
#include "model/spec/spec_reader.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

// A part of a model of two layers.
template <class Part>
Part part_of(const std::string& text) {
  const Json json = Json::parse(text);
  Part part;
  const int layers = 2;
  visit_fields(part, SpecReader(json, "part.", layers));
  return part;
}

template <class Part>
std::string rejection_of(const std::string& text) {
  try {
    part_of<Part>(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The result of `read` for the file of a model of two layers, with further fields, and `to` in place of `from`.
std::string of_model(const std::string& fields, const std::function<std::string(const std::string&)>& read,
                     const std::string& from = "", const std::string& to = "") {
  std::ifstream source(TURBOMIND_CORPUS "/model_spec/dense");
  std::string text{std::istreambuf_iterator<char>(source), {}};
  text.replace(text.rfind('}'), 1, fields + "}");
  if (!from.empty()) text.replace(text.find(from), from.size(), to);
  const auto path = std::filesystem::temp_directory_path() / ("spec-" + std::to_string(::getpid()));
  std::ofstream(path) << text;
  std::string made;
  try {
    made = read(path);
  } catch (const Error& error) {
    made = error.what();
  }
  std::filesystem::remove(path);
  return made;
}

std::string rejection_of_model(const std::string& fields, const std::string& from = "", const std::string& to = "") {
  return of_model(fields, [](const std::string& path) { return read_model_spec(path), std::string(); }, from, to);
}

std::string program_of_model(const std::string& fields, const std::string& from = "", const std::string& to = "") {
  return of_model(fields, &NativeRunner::program_text, from, to);
}

}  // namespace

TEST(a_description_has_a_value_for_each_layer) {
  const ModelSpec spec = read_model_spec(TURBOMIND_CORPUS "/model_spec/dense");
  CHECK_EQUAL(spec.num_layers, 2);
  CHECK(spec.attention.windows == std::vector<int>({0, 0}));
  CHECK(spec.layer_ropes == std::vector<int>({0, 0}));
  CHECK(!spec.ropes[0].stretch && !spec.moe && !spec.images && !spec.head && !spec.attention.mla);
  CHECK_EQUAL(*spec.bos_token_id, 1);
}

TEST(what_a_description_leaves_out_has_its_default) {
  const auto attention = part_of<AttentionSpec>(R"({"scale": 0.5, "windows": [0, 8], "mla": null})");
  CHECK_EQUAL(attention.scale, 0.5F);
  CHECK(attention.windows == std::vector<int>({0, 8}) && attention.qk_norm == QkNorm::kNone && !attention.mla);
  const auto moe = part_of<MoeSpec>(R"({"num_experts": 8, "experts_per_token": 2, "intermediate_size": 16,
                                        "router": {"score": "sigmoid"}})");
  CHECK(moe.layers == std::vector<bool>({true, true}) && moe.router.score == RouterScore::kSigmoid);
  CHECK_EQUAL(moe.router.groups, 1);
  const auto rope = part_of<RopeSpec>(R"({"theta": 10000, "inv_freq": [1.0, 0.5],
                                          "stretch": {"kind": "dynamic", "length": 8, "factor": 2.0}})");
  CHECK(rope.stretch->kind == StretchKind::kDynamic && rope.inv_freq == std::vector<float>({1.0F, 0.5F}));
}

TEST(layers_that_do_not_fit_are_refused_by_their_number) {
  const std::string narrow = R"(, "layer_attentions": [0, 1], "attentions": [{"scale": 1, "head_dim": 16}])";
  const std::string layered = R"(, "layer_attentions": [0, 1], "attentions": [{"scale": 1, "head_dim": 64}])";
  const std::pair<std::string, std::string> wrong[] = {
      {R"(, "layer_attentions": [0, 1])", "layer_attentions[1]: no such kind of attention"},
      {R"(, "layer_keys": [-1, 1])", "layer_keys[1] must be an earlier layer"},
      {R"(, "layer_keys": [1, -1])", "layer_keys[0] must be an earlier layer"},
      {narrow, "layer 1: rope.inv_freq must have 1 to head_dim / 2 values"},
      {layered + R"(, "layer_keys": [-1, 0])",
       "layer_keys[1] must be an earlier layer that attends to keys of its own and has the same memory, got 0"},
  };
  for (const auto& [fields, reason] : wrong) {
    const std::string rejection = rejection_of_model(fields);
    CHECK(rejection.find(": " + reason) != std::string::npos);
  }
  CHECK_EQUAL(rejection_of_model(layered), std::string());
  CHECK_EQUAL(rejection_of_model(R"(, "layer_keys": [-1, 0])"), std::string());
}

TEST(a_layer_that_has_no_program_is_refused_by_its_number_and_operation) {
  const std::string mla = R"("mla": {"kv_rank": 8, "q_rank": 0, "nope_dim": 8, "rope_dim": 32, "value_dim": 8,
                                     "norm_eps": 1e-6})";
  CHECK(rejection_of_model("", R"("mla": null)", mla).find(": layer 0: attend: attention.qkv_bias is incompatible") !=
        std::string::npos);
  const std::string moe = R"("moe": {"num_experts": 4, "experts_per_token": 2, "intermediate_size": 8,
                                     "router": {"scales_input": true}, "layers": [false, true]})";
  CHECK(rejection_of_model("", R"("moe": null)", moe)
            .find(": layer 1: experts: moe.router.scales_input is incompatible") != std::string::npos);
}

TEST(a_program_lists_the_operations_of_a_step) {
  CHECK_EQUAL(program_of_model(""), std::string(R"(embeddings
  stream = embed(tokens)
  rope tables = make(positions)
layer 0
  queries, keys, values = qkv(norm(stream))
  queries = rope(queries); cache = rope(keys), values
  stream += o(attend(queries))
  stream += mlp(norm(stream))
layer 1
  queries, keys, values = qkv(norm(stream))
  queries = rope(queries); cache = rope(keys), values
  stream += o(attend(queries))
  stream = wanted rows of stream
  stream += mlp(norm(stream))
output
  logits = output layer(norm(wanted rows of stream))
)"));
}

TEST(what_a_block_says_is_an_operation_in_its_place) {
  const std::string parallel = R"("is_parallel": false)";
  const std::string shared = R"("is_parallel": false, "shares_norm": false)";
  const std::string outputs = R"("has_output_norms": false)";
  const std::string both = R"(, "layer_mixers": ["both", "none"], "recurrence": {"kind": "gated_delta", "num_heads": 2,
      "num_key_heads": 2, "key_dim": 8, "value_dim": 8, "conv_kernel": 4})";
  struct Case {
    std::string fields, from, to, part;
  };
  const Case cases[] = {
      {"", parallel, R"("is_parallel": true)",
       "layer 0-1\n  mlp_input = norm(stream)\n  queries, keys, values = qkv(norm(stream))\n"},
      {"", shared, R"("is_parallel": true, "shares_norm": true)",
       "layer 0-1\n  normed = norm(stream)\n  queries, keys, values = qkv(normed)\n"},
      {"", outputs, R"("has_output_norms": true)",
       "  branch = mlp(norm(stream))\n  branch = norm(branch)\n  stream += branch\n"},
      {"", outputs, R"("stream_scale": 2.0)",
       "  branch = o(attend(queries))\n  stream *= 2.000000\n  stream += branch\n"},
      {R"(, "layer_mlps": [true, false])", "", "",
       "layer 1\n  queries, keys, values = qkv(norm(stream))\n  queries = rope(queries); cache = rope(keys), values\n"
       "  stream += o(attend(queries))\n  stream = wanted rows of stream\noutput"},
      {R"(, "layer_input": {"size": 8})", "", "", "  branch = further input(stream)\n  stream += branch\n"},
      {both, "", "", "  normed = norm(stream)\n  inputs = in(normed)\n"},
      {both, "", "", "  stream += out(outputs)\n  queries, keys, values = qkv(normed)\n"},
  };
  for (const auto& [fields, from, to, part] : cases) {
    const std::string program = program_of_model(fields, from, to);
    if (program.find(part) == std::string::npos) CHECK_EQUAL(program, part);
  }
}

TEST(a_description_is_refused_by_the_path_of_what_is_wrong) {
  const std::pair<std::string, std::string> wrong[] = {
      {R"({})", "part.scale is missing"},
      {R"({"scale": 0})", "part.scale must be a finite number"},
      {R"({"scale": 1, "softcap": -1})", "part.softcap must be a finite number"},
      {R"({"scale": 1, "windows": [0, -1]})", "part.windows[1] must be a whole number from 0"},
      {R"({"scale": 1, "windows": [0, 4294967296]})", "part.windows[1] must be a whole number from 0"},
      {R"({"scale": 1, "windows": [0]})", "part.windows must have a value for each of 2 layers, got 1"},
      {R"({"scale": 1, "qk_norm": "all"})", "part.qk_norm must be one of none, head, "},
      {R"({"scale": 1, "mla": {"kv_rank": 0}})", "part.mla.kv_rank must be a whole number from 1"},
  };
  for (const auto& [text, reason] : wrong) {
    CHECK_EQUAL(rejection_of<AttentionSpec>(text).substr(0, reason.size()), reason);
  }
}

}  // namespace turbomind::testing
