// Model execution interface of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/operators.h"
#include "device/token_sampler.h"
#include "model/cache_plan.h"
#include "model/embedding_range.h"
#include "model/image_group.h"

namespace turbomind {

enum class SpanLogits { kNone, kLast, kAll };

// Span of a sequence in a step: `count` consecutive tokens.
struct StepSpan {
  int first_token = 0;
  int count = 0;
  int first_position = 0;                    // position of the first of them
  const PageTables* tables = nullptr;        // each covers positions 0 .. first_position + count - 1; of a state, all
  SpanLogits requested = SpanLogits::kNone;  // rows whose logits are wanted
  int prompt_len = 0;                        // of the whole sequence; some models stretch positions by it
  // Set where the runner samples (RunnerTraits::samples_on_device); nothing is `requested` then.
  const SamplingMetadata* choice = nullptr;
  // Rows in place of token embeddings in the whole sequence, by position; only where the runner takes them.
  std::span<const EmbeddingRange> embeddings = {};
  int adapter = 0;      // slot of the low-rank adapter of its rows (AdapterSlots::set_adapter); 0: none
  int drafts = 0;       // last rows that are drafts; with SpanLogits::kLast, they and the row before are requested
  int second_text = 0;  // of an encoder: first position of the second text of a pair; 0: there is one text

  // Those that reach into the span.
  std::span<const EmbeddingRange> embedded() const {
    return ranges_within(embeddings, first_position, first_position + count);
  }
  int logit_rows() const {
    return requested == SpanLogits::kNone ? 0 : requested == SpanLogits::kLast ? 1 + drafts : count;
  }
};

// Image rows whose keys and values a step writes before its token rows run: `count` from `first` on.
struct EncoderKvWrite {
  const ImageGroup* group = nullptr;
  int first = 0;
  int count = 0;
  const PageTables* tables = nullptr;  // of the cache group: [pages][group->block_count()]
};

// Rows of one sequence that attend to the first `seen` rows of images, which have been written.
struct CrossAttentionSpan {
  int first_token = 0;
  int count = 0;
  int seen = 0;
  const PageTables* tables = nullptr;
};

// Inputs of a vision-language model.
struct ImageTraits {
  int width = 0;             // numbers of a row: an embedding, then what is added after each of the first layers
  bool has_grid = false;     // positions have three axes: a range may have a grid
  bool needs_whole = false;  // the tokens of a range see each other: all that are not cached come in one step
  bool has_cross_attention = false;  // text attends to the further rows of a range, which has one token
  bool own_on_grid = false;          // of a range without a grid, rows take the weights of text
};

// Placeholder in StepInput::tokens: the token that the step before samples for its span number `index`.
constexpr int32_t in_flight_token(int index) {
  return -1 - index;
}
constexpr int span_of_in_flight(int32_t token) {
  return -1 - token;
}

struct StepInput {
  std::vector<int32_t> tokens;  // [rows], spans are consecutive; negative: in_flight_token
  std::vector<StepSpan> spans;
  std::vector<EncoderKvWrite> kv_writes;        // at most the rows of a step; there may be no tokens
  std::vector<CrossAttentionSpan> cross_spans;  // in the order of their rows
  // Input of a draft head (HeadTraits): [rows, width], or [rows, hidden_size] of its own states. With continues_states
  // and no rows: its states of the step before, in the order of that step, which may not have been collected.
  std::vector<float> alongside;
  bool continues_states = false;

  void clear() {
    tokens.clear();
    spans.clear();
    kv_writes.clear();
    cross_spans.clear();
    alongside.clear();
    continues_states = false;
  }
};

// Results of a step.
struct StepOutput {
  // Of the requested rows, in span order; valid until the next launch.
  float* logits = nullptr;  // [requested rows, vocab_size], writable
  // [requested rows, hidden_size], after the final norm; a head's next input; the vectors of an encoder's texts.
  const float* hidden = nullptr;
  // Sampled tokens, in span order; valid until the next step is collected.
  const SampledToken* chosen = nullptr;
  // Time on a device other than the host; 0 where the host computes.
  double device_seconds = 0;
  // Where ModelRunner::keep_hidden says so: of all rows, [rows, width].
  const float* token_hidden = nullptr;
};

// Draft head (EAGLE, MTP): predicts the next token from the target's hidden states.
struct HeadTraits {
  int width = 0;                   // of a row of the target's hidden states (ModelRunner::keep_hidden)
  std::vector<int> target_layers;  // of the target
  std::vector<int32_t> tokens;     // target tokens by the head's logits; empty: the same
};

// Low-rank adapter that has been read but not uploaded.
class Adapter {
 public:
  virtual ~Adapter() = default;
};

// Low-rank adapter on disk that fits the model. Any thread.
class AdapterFile {
 public:
  virtual ~AdapterFile() = default;
  virtual size_t bytes() const = 0;  // that it takes in memory
  virtual std::unique_ptr<Adapter> read() const = 0;
  // Digest of its weights, independent of its name; empty: unknown. Reads it.
  virtual std::string content() const { return {}; }
};

// Adapter store of a runner.
class AdapterSlots {
 public:
  virtual ~AdapterSlots() = default;
  // Opens an adapter's directory; the file must not outlive the runner. Any thread, also during steps. Throws Error
  // that says what does not fit.
  virtual std::unique_ptr<AdapterFile> open_adapter(const std::string& directory) const = 0;
  // Makes an adapter usable by the steps that begin later, under a number from 1 on that is free. Throws
  // Error(kUnavailable), and has changed nothing, where the device lacks memory.
  virtual void set_adapter(int slot, std::unique_ptr<Adapter> adapter) = 0;
  // No step that begins later names it.
  virtual void drop_adapter(int slot) = 0;
};

// Runner in other processes, which may end and be restarted.
class RunnerProcesses {
 public:
  virtual ~RunnerProcesses() = default;
  // Whether they are known to be gone; `reported` is called, by any thread, when that is first known.
  virtual bool is_lost() const = 0;
  virtual void on_loss(std::function<void()> reported) = 0;
  // Restores everything but the cache's content. Throws Error if that fails; it may be tried again.
  virtual void restart() = 0;
};

// Upper bounds of a step.
struct StepLimits {
  int spans = 0;
  int context = 0;  // tokens of a sequence
  int block_len = 0;
};

// A runner's part of a cache.
struct CacheShare {
  CachePlan plan;
  CacheSize size;
  int first_group = 0;         // its own, of which there are as many as cache_groups() returned
  std::byte* pages = nullptr;  // where another runner has them already; null: this one takes the memory
};

// Constant properties of a runner.
struct RunnerTraits {
  int vocab_size = 0;
  int hidden_size = 0;
  ImageTraits images = {};  // of rows in place of token embeddings; without a width, it takes none
  std::optional<HeadTraits> head = std::nullopt;  // where it is one
  // A text runs in one step; the output of its last row is its vector. There are no logits.
  bool is_pooling_model = false;
  // Other runners of this process can use the cache's memory too (ModelRunner::allocate_cache).
  bool shares_cache = false;
  // It samples (StepSpan::choice): the next step may launch before this one is collected, with in-flight tokens, if no
  // rows were requested of this one.
  bool samples_on_device = false;
  AdapterSlots* adapters = nullptr;      // null: it takes none
  RunnerProcesses* processes = nullptr;  // null: it runs in this one, and a fault of the device cannot be mended
};

// Called by the step thread only.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  const RunnerTraits& traits() const { return traits_; }
  // Cache groups of its layers. Those with a window that no sequence of `limits` is longer than see
  // everything.
  virtual std::vector<CacheGroup> cache_groups(const StepLimits& limits) const = 0;
  // Allocates the memory of all steps, so that none fails later. Called once, first.
  virtual void prepare(const StepLimits& /*limits*/) {}
  // Bytes available for the KV cache, of one rank. Called before allocate_cache.
  virtual size_t free_cache_memory() = 0;
  // Sequences of equal tokens may share cache blocks where their prompts' variants are equal; 0 to 2^30 - 1.
  virtual int cache_variant(int /*prompt_len*/) const { return 0; }
  // Steps return StepOutput::token_hidden: joined hidden states before these layers; none: after the final norm.
  virtual void keep_hidden(const std::vector<int>& /*layers*/) {
    throw invalid_argument("what runs the model does not hand out the hidden states of all tokens");
  }
  // Called once, before the first step. Returns the cache's first page where RunnerTraits::shares_cache, else null.
  virtual std::byte* allocate_cache(const CacheShare& share) = 0;
  // Moves pages of the cache, one after the other, after all launched steps.
  virtual void move_pages(const std::vector<PageMove>& moves) = 0;
  // Operators for another runner on this one's cache, in one order with its own. Null: all of the device are.
  virtual std::unique_ptr<Operators> operators_alongside() { return nullptr; }
  // Bytes of a page outside of the cache, of all ranks, for runners of the same model and settings; 0: unsupported.
  virtual size_t kept_page_bytes() const { return 0; }
  // Copies pages out of the cache, or into it, one after the other, after all launched steps.
  virtual void read_pages(std::span<const int32_t> /*pages*/, std::byte* /*to*/) {
    throw internal_error("pages of this runner's cache cannot be read");
  }
  virtual void write_pages(std::span<const int32_t> /*pages*/, const std::byte* /*from*/) {
    throw internal_error("pages of this runner's cache cannot be written");
  }
  // Returns the memory of the cache's pages, which hold nothing, to the system until they are written again; where the
  // device cannot do that, it keeps them.
  virtual void release_pages() {}
  // Bytes of the weights of all ranks; 0: unknown.
  virtual size_t weight_bytes() const { return 0; }
  // Warms up decoding once the cache is allocated; returns the number of prepared shapes. Optional for correctness.
  virtual size_t prepare_decoding(const StepLimits& /*limits*/) { return 0; }
  // Lowers the priority of its compute threads, the caller included.
  virtual void lower_priority() {}
  // Drops what it prepared for others than the first `count` shapes.
  virtual void keep_prepared(size_t /*count*/) {}
  // Whether it samples so in the next launch, which must then request it.
  virtual bool reserve(const SamplingMetadata& /*choice*/) { return traits_.samples_on_device; }

  // Launches a step, which writes the keys and values of every row. A throw means the device failed, not a request.
  virtual void launch(const StepInput& input) = 0;
  // Waits for the oldest launched step that was not collected.
  virtual StepOutput collect() = 0;

  StepOutput forward(const StepInput& input) {
    launch(input);
    return collect();
  }

 protected:
  explicit ModelRunner(RunnerTraits traits) : traits_(std::move(traits)) {}

  RunnerTraits traits_;  // complete when the runner is made
};

}  // namespace turbomind
