// Shared memory through which an engine hands steps to its worker processes and receives results.
//
//   engine                                   each worker, one a rank
//   writes the order; given += 1; wakes      waits until given changes
//   waits until every done >= the order's    does it; the first rank writes logits and hidden rows, or tokens;
//                                            done = the order's number; wakes
//
// Orders are done in their sequence. Two steps may be under way, each in its own area; logits and hidden rows there are
// once. It is an anonymous file that workers inherit; pages take no memory before they are touched.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/file_descriptor.h"
#include "kernels/sampling.h"

namespace turbomind {

inline constexpr int kMaxRanks = 64;
inline constexpr size_t kMaxPathLen = 4096;
inline constexpr size_t kTextBytes = 16384;
inline constexpr int kMaxOrders = 4;  // that were given and are not done
inline constexpr int kAreas = 2;
inline constexpr int kMaxChoiceLogprobs = 32;

// Upper bounds of an order, and the sizes of its rows.
struct ChannelShape {
  int32_t ranks = 1;
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t rows = 0;
  int32_t spans = 0;
  int32_t blocks = 0;           // entries of all block tables of a step
  int32_t embedding_width = 0;  // numbers of a row of an image; 0: the model reads text alone
  int32_t list_words = 0;       // of the lists of all choices of a step
};

enum class OrderKind : int32_t { kLoad, kAllocate, kStep, kSetAdapter, kDropAdapter, kMoveBlocks };

// Of a step; the fields of StepSpan.
struct ChannelSpan {
  int32_t first_token;
  int32_t count;
  int32_t first_position;
  int32_t prompt_len;
  int32_t first_block;  // of the step's block tables; the pages of its state follow its blocks
  int32_t block_count;
  int32_t first_logit_row;  // its rows from this one on are wanted; `count`: none
  int32_t adapter;
};

// How a token is chosen (SamplingMetadata); its lists are words of the step's lists from first_list on: biases (token,
// then the float's bits), forbidden tokens, the mask, and what its history is counted from.
struct ChannelChoice : SamplingParams {
  double u = 0;     // the random number that it is drawn by
  int32_t row = 0;  // of the step, whose logits it is chosen from
  int32_t logprobs = -1;
  int32_t history = -1;  // where the worker counts its tokens; -1: nowhere
  int32_t first_list = 0;
  int32_t biases = 0;
  int32_t forbidden = 0;
  int32_t mask_words = 0;
  int32_t counted = -1;    // tokens that the history begins again with; -1: it is continued
  int32_t prompt_len = 0;  // of these, tokens of the prompt
};
static_assert(std::is_trivially_copyable_v<ChannelChoice>);

// Calls visit(name, field) for every field that a worker reads.
template <class Visit>
void visit_fields(ChannelChoice& choice, Visit&& visit) {
  visit_sampling(choice, [&](const char* name, auto& field, const auto&) { visit(name, field); });
  visit("is_greedy", choice.is_greedy);
  visit("u", choice.u);
  visit("row", choice.row);
  visit("logprobs", choice.logprobs);
  visit("history", choice.history);
  visit("first_list", choice.first_list);
  visit("biases", choice.biases);
  visit("forbidden", choice.forbidden);
  visit("mask_words", choice.mask_words);
  visit("counted", choice.counted);
  visit("prompt_len", choice.prompt_len);
}

struct Order {
  OrderKind kind = OrderKind::kLoad;
  int32_t area = 0;  // of kStep and kMoveBlocks
  // Of kAllocate.
  int64_t page_bytes = 0;
  int32_t block_count = 0;  // pages; a block of all layers takes one
  int32_t block_len = 0;
  int32_t host_block_count = 0;
  int32_t sequences = 0;        // of a step at most
  int32_t sequence_blocks = 0;  // of a sequence at most
  // Of kMoveBlocks: pairs of numbers in the place of the block tables.
  int32_t moves = 0;
  // Of kStep.
  int32_t rows = 0;
  int32_t spans = 0;
  int32_t logit_rows = 0;
  int32_t choices = 0;
  int32_t embedded = 0;  // rows that have embeddings of images in place of their tokens'
  int32_t has_grid = 0;  // whether grid_positions() holds the rows' positions
  // Of kSetAdapter and kDropAdapter.
  int32_t slot = 0;
  int32_t directory_bytes = 0;
  char directory[kMaxPathLen] = {};
};

class StepChannel {
 public:
  // Makes the memory. Throws Error(kUnavailable).
  explicit StepChannel(const ChannelShape& shape);
  // Maps that of file descriptor `fd`, which the engine made. Throws Error.
  explicit StepChannel(int fd);

  int fd() const { return fd_.get(); }
  const ChannelShape& shape() const;

  // The order that is given next.
  Order& order() const { return order(given() + 1); }
  Order& order(uint32_t number) const;

  // Of the areas:
  int32_t* tokens(int area) const { return at<int32_t>(tokens_, area); }  // [rows]; -1 - i: choice i of the last step
  ChannelSpan* spans(int area) const { return at<ChannelSpan>(spans_, area); }  // [spans]
  int32_t* blocks(int area) const { return at<int32_t>(blocks_, area); }        // [blocks]
  int32_t* embedded_tokens(int area) const {
    return at<int32_t>(embedded_tokens_, area);
  }  // [rows], embedded ones first
  float* embeddings(int area) const { return at<float>(embeddings_, area); }              // [rows, embedding_width]
  int32_t* grid_positions(int area) const { return at<int32_t>(grid_positions_, area); }  // [rows, 3]
  ChannelChoice* choices(int area) const { return at<ChannelChoice>(choices_, area); }    // [spans]
  int32_t* lists(int area) const { return at<int32_t>(lists_, area); }                    // [list_words]
  int32_t* chosen(int area) const { return at<int32_t>(chosen_, area); }                  // [spans]
  float* logprobs(int area) const { return at<float>(logprobs_, area); }                  // [spans], of chosen tokens
  int32_t* top_tokens(int area) const { return at<int32_t>(top_tokens_, area); }          // [spans, kMaxChoiceLogprobs]
  float* top_logprobs(int area) const { return at<float>(top_logprobs_, area); }          // the same

  float* logits() const { return at<float>(logits_); }  // [rows, vocab_size]
  float* hidden() const { return at<float>(hidden_); }  // [rows, hidden_size]

  // ---- the engine ----

  // The number of the order given last; the first one, to load the model, is given from the start.
  uint32_t given() const;
  // Hands over what order() says; returns its number.
  uint32_t give();
  // Whether a rank has done this order; waits so long for it.
  bool wait_done(int rank, uint32_t number, std::chrono::nanoseconds timeout) const;
  // Whether that order, or one before it, failed there.
  bool has_failed(int rank, uint32_t number) const;
  // Text of a rank: why its first order that failed did; without one, facts about what it has done last.
  std::string text(int rank) const;

  // ---- a worker ----

  // Whether there is an order after this one; waits so long for it.
  bool wait_order(uint32_t after, std::chrono::nanoseconds timeout) const;
  // The order is done, as all before it. `text` is cut to what there is room for.
  void finish(int rank, uint32_t number, bool has_failed, std::string_view text);

 private:
  struct Header;
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  struct Rank;

  template <class T>
  T* at(size_t offset, int area = 0) const {
    return reinterpret_cast<T*>(memory_.get() + offset + static_cast<size_t>(area) * area_bytes_);
  }
  Header& header() const;
  Rank& rank(int index) const;
  void lay_out(const ChannelShape& shape);
  void map();

  FileDescriptor fd_;
  std::unique_ptr<std::byte, Unmap> memory_;
  size_t bytes_ = 0;
  // Offsets, those of areas in the first one.
  size_t tokens_ = 0, spans_ = 0, blocks_ = 0, logits_ = 0, hidden_ = 0;
  size_t embedded_tokens_ = 0, embeddings_ = 0, grid_positions_ = 0;
  size_t choices_ = 0, lists_ = 0, chosen_ = 0, logprobs_ = 0, top_tokens_ = 0, top_logprobs_ = 0;
  size_t area_bytes_ = 0;
};

}  // namespace turbomind
