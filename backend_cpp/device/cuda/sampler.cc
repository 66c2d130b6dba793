#include "device/cuda/sampler.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/kernel_choice.h"

namespace turbomind {

namespace {

constexpr std::array<std::string_view, 7> kKnownFields{
    "top_p", "top_k", "min_p", "temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"};
constexpr int kRowsAtOnce = 64;    // bounds scratch memory
constexpr int kMaxHistories = 64;  // 0.6 MB each for a vocabulary of 150,000

// Room for lists: a mask and some tokens for each of this many rows.
constexpr size_t kMaxListRows = 256;
constexpr size_t kListBytes = 1024;
constexpr size_t kListAlignment = 8;

size_t aligned(size_t bytes) {
  return (bytes + kListAlignment - 1) / kListAlignment * kListAlignment;
}

// Puts lists one after the other, on the host for the device.
class ListWriter {
 public:
  ListWriter(std::byte* host, const std::byte* device) : host_(host), device_(device) {}

  template <class T>
  const T* add(const T* values, size_t count) {
    const auto* result = reinterpret_cast<const T*>(device_ + used_);
    std::memcpy(host_ + used_, values, count * sizeof(T));
    used_ += aligned(count * sizeof(T));
    return result;
  }
  size_t used() const { return used_; }

 private:
  std::byte* host_;
  const std::byte* device_;
  size_t used_ = 0;
};

}  // namespace

CudaSampler::CudaSampler(CudaOperators& ops, int vocab_size, int max_choices)
    : ops_(ops),
      vocab_size_(vocab_size),
      is_enabled_(requested_kernels("turbomind", "sampling") != KernelSource::kOff),
      histories_(std::min(max_choices, kMaxHistories)) {
  const auto rows = static_cast<size_t>(max_choices);
  history_memory_ = ops.allocate(std::min(rows, size_t{kMaxHistories}) * history_words() * sizeof(int32_t));
  rows_ = Staged(ops, rows * sizeof(cuda::SamplingRow));
  lists_ = Staged(ops, std::min(rows, kMaxListRows) * (mask_words() * sizeof(uint32_t) + kListBytes));
  moves_ = Staged(ops, rows * sizeof(cuda::TokenMove));
  logprob_rows_.rows = Staged(ops, rows * sizeof(int32_t));
  logprob_rows_.moves = Staged(ops, rows * sizeof(cuda::TokenMove));
  logprob_tokens_ = ops.allocate(rows * sizeof(int32_t));
  const auto make_results = [rows](const auto& allocate) {
    return Results{allocate(rows * sizeof(int32_t)), allocate(rows * sizeof(float)),
                   allocate(rows * cuda::kMaxLogprobs * sizeof(int32_t)),
                   allocate(rows * cuda::kMaxLogprobs * sizeof(float))};
  };
  results_ = make_results([&ops](size_t bytes) { return ops.allocate(bytes); });
  for (StepInFlight& step : steps_) {
    step.results = make_results([&ops](size_t bytes) { return ops.allocate_staging(bytes); });
    for (cudaEvent_t* event : {&step.began, &step.is_there}) {
      cuda::check(cudaEventCreateWithFlags(event, cudaEventDefault), "creating an event");
    }
  }
  // So that no step finds too little.
  const int at_once = std::min(max_choices, kRowsAtOnce);
  ops.scratch(cuda::scratch_bytes<float>(static_cast<size_t>(at_once) * vocab_size) +
              cuda::sampling_scratch_bytes(vocab_size, at_once));
}

CudaSampler::~CudaSampler() {
  for (const StepInFlight& step : steps_) {
    cudaEventDestroy(step.began);
    cudaEventDestroy(step.is_there);
  }
}

// ---- penalties ----

CudaSampler::Counts CudaSampler::counts_at(int slot) const {
  auto* seen = history_memory_.as<uint32_t>() + static_cast<size_t>(slot) * history_words();
  return {seen, reinterpret_cast<int32_t*>(seen + mask_words())};
}

bool CudaSampler::reserve(const SamplingMetadata& choice) {
  if (!is_enabled_ || !uses_only(choice, kKnownFields)) return false;
  const size_t list_bytes = reserved_list_bytes_ + bytes_of_lists(choice);
  if (list_bytes > lists_.size()) return false;
  if (choice.has_penalties() && !histories_.reserve(choice)) return false;
  reserved_list_bytes_ = list_bytes;
  return true;
}

size_t CudaSampler::bytes_of_lists(const SamplingMetadata& choice) const {
  const size_t biases = choice.biases != nullptr ? choice.biases->size() : 0;
  return aligned(biases * sizeof(cuda::TokenBias)) + aligned(choice.forbidden.size() * sizeof(int32_t)) +
         aligned(choice.mask != nullptr ? mask_words() * sizeof(uint32_t) : 0);
}

// Counts the sequence's tokens from its beginning.
void CudaSampler::count_tokens(const Counts& counts, const SamplingMetadata& choice) {
  std::vector<uint32_t> seen(mask_words());
  std::vector<int32_t> times(static_cast<size_t>(vocab_size_));
  for (size_t i = 0; i < choice.tokens->size(); ++i) {
    const auto token = static_cast<size_t>((*choice.tokens)[i]);
    seen[token / 32] |= 1u << token % 32;
    if (i >= static_cast<size_t>(choice.prompt_len)) ++times[token];
  }
  ops_.upload(seen.data(), seen.size() * sizeof(uint32_t), counts.seen);
  ops_.upload(times.data(), times.size() * sizeof(int32_t), counts.counts);
}

// ---- a step ----

void CudaSampler::begin(const std::vector<const SamplingMetadata*>& choices) {
  ++step_;
  histories_.begin_step();
  reserved_list_bytes_ = 0;
  StepInFlight& step = steps_[static_cast<size_t>(step_ % 2)];
  ops_.record_event(step.began);
  step.chosen.assign(choices.size(), {});
  fill_logprob_rows(choices);
  fill_rows(choices);
}

void CudaSampler::fill_rows(const std::vector<const SamplingMetadata*>& choices) {
  ListWriter lists(lists_.host<std::byte>(), lists_.device<std::byte>());
  std::vector<cuda::TokenBias> biases;
  for (size_t i = 0; i < choices.size(); ++i) {
    const SamplingMetadata& choice = *choices[i];
    cuda::SamplingRow row;
    static_cast<SamplingParams&>(row) = choice;
    if (choice.has_penalties()) {
      bool recounts = false;
      const Counts counts = counts_at(histories_.count(choice, recounts));
      if (recounts) count_tokens(counts, choice);
      row.seen = counts.seen;
      row.counts = counts.counts;
    }
    if (choice.biases != nullptr && !choice.biases->empty()) {
      biases.clear();
      for (const auto& [token, bias] : *choice.biases) biases.push_back({token, bias});
      row.biases = lists.add(biases.data(), biases.size());
      row.bias_count = static_cast<int>(biases.size());
    }
    if (!choice.forbidden.empty()) {
      row.forbidden = lists.add(choice.forbidden.data(), choice.forbidden.size());
      row.forbidden_count = static_cast<int>(choice.forbidden.size());
    }
    if (choice.mask != nullptr) {
      row.mask = lists.add(reinterpret_cast<const uint32_t*>(choice.mask), mask_words());
    }
    rows_.host<cuda::SamplingRow>()[i] = row;
  }
  lists_.upload(ops_, lists.used());
  rows_.upload(ops_, choices.size() * sizeof(cuda::SamplingRow));
}

void CudaSampler::fill_logprob_rows(const std::vector<const SamplingMetadata*>& choices) {
  logprob_rows_.choices.clear();
  logprob_rows_.max_top = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i]->logprobs < 0) continue;
    const auto entry = static_cast<int32_t>(logprob_rows_.choices.size());
    const auto row = static_cast<int32_t>(i) % kRowsAtOnce;
    logprob_rows_.rows.host<int32_t>()[entry] = row;
    logprob_rows_.moves.host<cuda::TokenMove>()[entry] = {row, entry};
    logprob_rows_.choices.push_back(static_cast<int>(i));
    logprob_rows_.max_top = std::max(logprob_rows_.max_top, std::min(choices[i]->logprobs, vocab_size_));
  }
  logprob_rows_.rows.upload(ops_, logprob_rows_.choices.size() * sizeof(int32_t));
  logprob_rows_.moves.upload(ops_, logprob_rows_.choices.size() * sizeof(cuda::TokenMove));
}

void CudaSampler::scatter(const std::vector<InFlightToken>& in_flight, int32_t* tokens) {
  if (in_flight.empty()) return;
  auto* moves = moves_.host<cuda::TokenMove>();
  for (const InFlightToken& token : in_flight) *moves++ = {token.choice, token.row};
  moves_.upload(ops_, in_flight.size() * sizeof(cuda::TokenMove));
  cuda::move_tokens(ops_.stream(), results_.tokens.as<int32_t>(), moves_.device<cuda::TokenMove>(),
                    static_cast<int>(in_flight.size()), tokens);
}

void CudaSampler::choose(int first, int count, float* logits) {
  for (int done = 0; done < count; done += kRowsAtOnce) {
    choose_at_once(first + done, std::min(kRowsAtOnce, count - done),
                   logits + static_cast<size_t>(done) * static_cast<size_t>(vocab_size_));
  }
}

// `first` is a multiple of kRowsAtOnce.
void CudaSampler::choose_at_once(int first, int count, float* logits) {
  cudaStream_t stream = ops_.stream();
  const auto begin = std::lower_bound(logprob_rows_.choices.begin(), logprob_rows_.choices.end(), first);
  const auto end = std::lower_bound(begin, logprob_rows_.choices.end(), first + count);
  const int entries = static_cast<int>(end - begin);
  const size_t first_entry = static_cast<size_t>(begin - logprob_rows_.choices.begin());
  const size_t kept_floats = static_cast<size_t>(entries) * static_cast<size_t>(vocab_size_);
  cuda::Scratch scratch =
      ops_.scratch(cuda::scratch_bytes<float>(kept_floats) + cuda::sampling_scratch_bytes(vocab_size_, count));
  auto* kept = scratch.take<float>(kept_floats);
  ops_.gather_rows(logits, logprob_rows_.rows.device<int32_t>() + first_entry, entries, vocab_size_, kept);

  const auto* rows = rows_.device<cuda::SamplingRow>() + first;
  auto* tokens = results_.tokens.as<int32_t>() + first;
  cuda::sample(stream, scratch, rows, logits, vocab_size_, count, tokens);
  cuda::record_tokens(stream, rows, tokens, count);

  cuda::move_tokens(stream, tokens, logprob_rows_.moves.device<cuda::TokenMove>() + first_entry, entries,
                    logprob_tokens_.as<int32_t>());
  const size_t first_top = first_entry * static_cast<size_t>(logprob_rows_.max_top);
  cuda::log_probabilities(stream, kept, vocab_size_, entries, logprob_tokens_.as<int32_t>() + first_entry,
                          logprob_rows_.max_top, results_.logprobs.as<float>() + first_entry,
                          results_.top.as<int32_t>() + first_top, results_.of_top.as<float>() + first_top);
}

void CudaSampler::end() {
  StepInFlight& step = steps_[static_cast<size_t>(step_ % 2)];
  const auto download = [this](const AlignedBuffer& from, size_t count, const AlignedBuffer& to) {
    ops_.download_later(from.as<void>(), count * sizeof(int32_t), to.as<void>());
  };
  const Results& host = step.results;
  const size_t entries = logprob_rows_.choices.size();
  const size_t top = static_cast<size_t>(logprob_rows_.max_top);
  download(results_.tokens, step.chosen.size(), host.tokens);
  download(results_.logprobs, entries, host.logprobs);
  download(results_.top, entries * top, host.top);
  download(results_.of_top, entries * top, host.of_top);
  for (size_t i = 0; i < entries; ++i) {
    SampledToken& chosen = step.chosen[static_cast<size_t>(logprob_rows_.choices[i])];
    chosen.top_tokens = host.top.as<int32_t>() + i * top;
    chosen.top_log_probabilities = host.of_top.as<float>() + i * top;
  }
  ops_.record_event(step.is_there);
}

const SampledToken* CudaSampler::collect() {
  StepInFlight& step = steps_[static_cast<size_t>(++taken_ % 2)];
  ops_.wait_for(step.is_there);
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, step.began, step.is_there), "timing a step");
  seconds_taken_ = milliseconds * 1e-3;
  const float* logprobs = step.results.logprobs.as<float>();
  for (size_t i = 0; i < step.chosen.size(); ++i) {
    SampledToken& chosen = step.chosen[i];
    chosen.token = step.results.tokens.as<int32_t>()[i];
    if (chosen.top_tokens != nullptr) chosen.log_probability = *logprobs++;
  }
  return step.chosen.data();
}

}  // namespace turbomind
