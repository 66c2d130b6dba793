// Settings to an engine's configuration, without files, devices and processes.
#include "engine/resolve.h"

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Changes of a case.
struct Given {
  EngineSettings settings;
  ModelSpec spec;
  DeviceTraits device;
  bool has_worker = false;
};
using Change = std::function<void(Given&)>;

ResolvedEngine resolve_with(const Change& change) {
  Given given;
  given.spec.model_name = "small";
  given.spec.dtype = "bfloat16";
  given.spec.num_layers = 2;
  given.spec.vocab_size = 100;
  given.spec.hidden_size = 64;
  given.spec.max_position_embeddings = 4096;
  RopeSpec& rope = given.spec.ropes.emplace_back();
  rope.theta = 100;
  rope.inv_freq = {1, 0.1f};  // 100^(-2 i / 4)
  given.device.batch_size = 48;
  given.device.step_tokens = 256;
  given.device.cache_limit = 64 * kMiB;
  given.device.drafts_pay = true;
  change(given);
  return resolve(given.settings, given.spec, given.device, given.has_worker);
}

template <class Call>
std::string rejection_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A cache of blocks of 64 tokens with a page of 1 MiB each, and of states with three.
ResolvedEngine with_plan(const Change& change, bool has_state = false, bool is_separate_pool = false) {
  ResolvedEngine engine = resolve_with(change);
  engine.config.plan.page_bytes = kMiB;
  CacheGroup& blocks = engine.config.plan.groups.emplace_back();
  blocks.block_len = 64;
  blocks.pages = 1;
  blocks.is_separate_pool = is_separate_pool;
  if (!has_state) return engine;
  CacheGroup& states = engine.config.plan.groups.emplace_back();
  states.kind = MemoryKind::kState;
  states.pages = 3;
  return engine;
}

Change set(const std::string& json) {
  return [json](Given& given) { read_settings(Json::parse(json), given.settings); };
}

Change learned(int positions, int expected) {
  return [=](Given& given) {
    given.spec.learned_positions = positions;
    given.settings.session_len = expected;
  };
}

Change sparse_of_device(bool has, int expected) {
  return [=](Given& given) {
    given.spec.attention.mla.emplace().indexer.emplace().top_k = 2048;
    given.device.has_sparse_attention = has;
    given.settings.session_len = expected;
  };
}

void encode(Given& given) {
  given.spec.encoder.emplace();
}

Change with_worker(const std::string& json) {
  return [json](Given& given) {
    set(json)(given);
    given.has_worker = true;
  };
}

}  // namespace

TEST(sizes_follow_from_settings_model_and_device) {
  struct Case {
    Change given;
    int session_len, batch, step_tokens, rows, snapshot_interval;
  };
  const std::vector<Case> cases{
      {set("{}"), 4096, 48, 256, 256, 512},
      {set(R"({"session_len": 100, "max_batch_size": 3})"), 100, 3, 256, 256, 512},
      {set(R"({"max_batch_size": 300})"), 4096, 300, 400, 400, 512},  // a quarter is left to prompts
      {set(R"({"max_prefill_token_num": 1000})"), 4096, 48, 1000, 1000, 512},
      {set(R"({"max_prefill_token_num": 1000, "num_tokens_per_iter": 70})"), 4096, 48, 70, 70, 512},
      {set(R"({"max_prefill_iters": 4})"), 4096, 48, 1024, 1024, 512},
      {set(R"({"cache_block_seq_len": 32, "state_snapshot_interval": 100})"), 4096, 48, 256, 256, 128},
      {learned(512, 300), 300, 48, 256, 256, 512},
      {sparse_of_device(true, 0), 4096, 48, 256, 256, 512},
      {sparse_of_device(false, 0), 2048, 48, 256, 256, 512},
      {encode, 4096, 48, 256, 4096, 512},  // its longest text runs in one step
      {[](Given& given) { given.spec.images.emplace().whole_rows = 500; }, 4096, 48, 548, 548, 512},
  };
  for (const Case& expected : cases) {
    const ResolvedEngine engine = resolve_with(expected.given);
    CHECK_EQUAL(engine.config.session_len, expected.session_len);
    CHECK_EQUAL(engine.config.max_batch_size, expected.batch);
    CHECK_EQUAL(engine.config.max_step_tokens, expected.step_tokens);
    CHECK_EQUAL(engine.max_tokens, expected.rows);
    CHECK_EQUAL(engine.config.snapshot_interval, expected.snapshot_interval);
    CHECK(engine.notes.empty());
  }
}

TEST(storage_follows_from_types_and_bits) {
  struct Case {
    std::string settings;
    DType dtype;
    CacheType cache;
    int bits;
  };
  for (const Case& expected : std::vector<Case>{
           {"{}", DType::kBFloat16, CacheType::kBFloat16, 0},
           {R"({"dtype": "float32"})", DType::kFloat32, CacheType::kFloat32, 0},
           {R"({"dtype": "float16", "weight_bits": 4})", DType::kFloat16, CacheType::kBFloat16, 4},
           {R"({"quant_policy": 8})", DType::kBFloat16, CacheType::kInt8, 0},
           {R"({"dtype": "float32", "quant_policy": 4})", DType::kFloat32, CacheType::kInt4, 0},
       }) {
    const Storage storage = resolve_with(set(expected.settings)).storage;
    CHECK(storage.weights.dtype == expected.dtype && storage.cache == expected.cache);
    CHECK_EQUAL(storage.weights.bits, expected.bits);
  }
}

TEST(a_cache_takes_blocks_or_a_share_of_the_free_memory) {
  struct Case {
    std::string settings;
    bool has_state, is_separate_pool;
    size_t free_bytes;
    int pages;
  };
  for (const Case& expected : std::vector<Case>{
           {R"({"cache_max_entry_count": 10})", false, false, 0, 10},
           {R"({"cache_max_entry_count": 10, "max_batch_size": 4})", true, false, 0, 10 + 4 * 2 * 3},
           {"{}", false, false, 50 * kMiB, 40},                                    // 0.8 of it
           {"{}", false, false, 1000 * kMiB, 64},                                  // the device's limit
           {R"({"tp": 4})", false, false, 1000 * kMiB, 16},                        // of all ranks together
           {R"({"cache_max_entry_count": 0.5})", false, false, 1000 * kMiB, 500},  // has no limit
           {R"({"cache_max_entry_count": 0.5})", false, true, 1000 * kMiB, 250},   // a draft's pages come twice
           {R"({"max_batch_size": 2, "session_len": 640})", false, false, 1000 * kMiB, 20},  // as much as it can use
       }) {
    const ResolvedEngine engine = with_plan(set(expected.settings), expected.has_state, expected.is_separate_pool);
    CHECK_EQUAL(cache_page_count(engine, expected.free_bytes), expected.pages);
  }
  CHECK_EQUAL(cache_page_count(resolve_with(encode), 1000 * kMiB), 0);
  const ResolvedEngine host = with_plan(set(R"({"num_cpu_blocks": 30, "tp": 2})"));
  CHECK_EQUAL(host_page_count(host, 60 * kMiB), 30);
  CHECK_EQUAL(rejection_of([&] { host_page_count(host, 60 * kMiB - 1); }),
              "num_cpu_blocks: 30 blocks take 60 MiB, the host has 59 MiB left");
}

TEST(drafts_are_made_where_they_pay) {
  const auto drafts = [](const Change& change) {
    return resolve_with(change).config.speculation.num_speculative_tokens > 0;
  };
  CHECK(drafts(set("{}")));
  CHECK(!drafts(encode));
  CHECK(!drafts(with_worker("{}")));
  CHECK(!drafts([](Given& given) { given.device.drafts_pay = false; }));
  CHECK(!drafts(set(R"({"speculative_config": "none"})")));
  CHECK(drafts(with_worker(R"({"speculative_config": {"method": "ngram"}})")));

  const ResolvedEngine target =
      resolve_with(set(R"({"speculative_config": {"model": "d", "weight_bits": 4}, "rope_scaling_factor": 2})"));
  const ResolvedDrafter drafter = resolve_drafter(target, target.spec, false);
  CHECK_EQUAL(drafter.storage.weights.bits, 4);
  CHECK_EQUAL(drafter.spec.ropes[0].stretch->factor, 2);
  ModelSpec recurrent = target.spec;
  recurrent.recurrence.emplace();
  CHECK_EQUAL(rejection_of([&] { resolve_drafter(target, recurrent, false); }),
              "speculative_config: layers of small keep a state; a model that drafts must keep none");
  CHECK_EQUAL(rejection_of([&] { resolve_drafter(target, target.spec, true); }),
              "speculative_config: the draft model must be one that the TurboMind engine runs");
  const ResolvedEngine of_head = resolve_with(set(R"({"speculative_config": {"method": "mtp", "model": "h"}})"));
  CHECK_EQUAL(rejection_of([&] { resolve_drafter(of_head, of_head.spec, false); }), "speculative_config: h is no head");
  ModelSpec head = of_head.spec;
  head.head.emplace().target_hidden_size = 32;
  CHECK_EQUAL(rejection_of([&] { resolve_drafter(of_head, head, false); }),
              "speculative_config: h is a head of another model");
}

TEST(settings_that_are_ignored_are_named) {
  const Change bits = set(R"({"quant_policy": 8, "cache_dir": "/c"})");
  const ResolvedEngine resolved = resolve_with(bits);
  CHECK(resolved.notes.empty() && resolved.settings.quant_policy == 8);
  CHECK_EQUAL(resolved.config.disk.directory, "/c");
  const ResolvedEngine encoder = resolve_with([&](Given& given) {
    bits(given);
    encode(given);
  });
  CHECK_EQUAL(encoder.settings.quant_policy, 0);
  CHECK_EQUAL(encoder.config.disk.directory, "");
  CHECK_EQUAL(encoder.notes.at(0), "quant_policy is ignored: small is an encoder, which has no cache");
  CHECK_EQUAL(encoder.notes.at(1), "cache_dir is ignored: small has no cache that files could keep");
  CHECK_EQUAL(resolve_with(with_worker(R"({"cache_dir": "/c"})")).notes.at(0),
              "cache_dir is ignored: small runs in processes of its own, whose cache files cannot keep");
}

TEST(settings_that_do_not_fit_are_refused_by_name) {
  const std::string no_caching = R"("enable_prefix_caching": false)";
  struct Case {
    Change given;
    std::string rejection;
  };
  for (const Case& rejected : std::vector<Case>{
           {learned(512, 0), "session_len must be at most 512 positions that the model has learned, got 4096"},
           {sparse_of_device(false, 3000),
            "session_len must be at most 2048, got 3000: in longer sequences this model's attention is sparse, which "
            "this device does not have"},
           {set(R"({"rope_scaling_factor": 0.5})"), "rope_scaling_factor must be 0 or >= 1, got 0.500000"},
           {[](Given& given) {
              given.settings.rope_scaling_factor = 2;
              given.spec.ropes[0].inv_freq[1] = 0.05f;
            },
            "rope_scaling_factor: this model's checkpoint has its own scaling; use 0"},
           {[](Given& given) {
              given.settings.rope_scaling_factor = 2;
              given.spec.ropes.clear();
            },
            "rope_scaling_factor: this model does not rotate positions; use 0"},
           {set("{" + no_caching + R"(, "kv_events_config": {"enable_kv_cache_events": true}})"),
            "kv_events_config needs enable_prefix_caching: without it no request finds what others left in the cache"},
           {set("{" + no_caching + R"(, "cache_dir": "/c"})"),
            "cache_dir needs enable_prefix_caching: without it no request looks for what others computed"},
           {with_worker(R"({"weight_bits": 4})"),
            "the PyTorch engine has no weight_bits: quantize the checkpoint, or use the TurboMind engine"},
           {with_worker(R"({"speculative_config": {"method": "mtp"}})"),
            "speculative_config: heads draft for models that the TurboMind engine runs"},
           {set(R"({"tp": 2, "speculative_config": {"model": "d"}})"),
            "speculative_config: draft models and heads run where tp is 1, or on CPUs"},
       }) {
    CHECK_EQUAL(rejection_of([&] { resolve_with(rejected.given); }), rejected.rejection);
  }
}

}  // namespace turbomind::testing
