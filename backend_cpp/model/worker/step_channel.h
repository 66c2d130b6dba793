// The memory through which an engine hands steps to the processes that run its model, and takes back what they bring.
//
//   engine                                   each worker, one a rank
//   writes the order; order += 1; wakes      waits until order changes
//   waits until every done == order          does it; the first rank writes logits and hidden rows;
//                                            done = order; wakes
//
// One order is under way at a time, so whoever's turn it is owns all of the memory. It is an anonymous file that
// workers inherit; pages take no memory before they are touched.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace turbomind {

inline constexpr int kMaxRanks = 64;
inline constexpr size_t kLongestPath = 4096;
inline constexpr size_t kTextBytes = 16384;

// What an order holds at most, and the sizes of its rows.
struct ChannelShape {
  int32_t ranks = 1;
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t rows = 0;
  int32_t spans = 0;
  int32_t blocks = 0;           // entries of all block tables of a step
  int32_t embedding_width = 0;  // numbers of a row of an image; 0: the model reads text alone
};

enum class OrderKind : int32_t { kLoad, kAllocate, kStep, kPlaceAdapter, kDropAdapter, kMoveBlocks };

// Of a step; the fields of StepSpan.
struct ChannelSpan {
  int32_t first_row;
  int32_t count;
  int32_t first_position;
  int32_t prompt_len;
  int32_t first_block;  // of the step's block tables; the pages of its state follow its blocks
  int32_t block_count;
  int32_t wanted_from;  // its rows from this one on are wanted; `count`: none
  int32_t adapter;
};

struct Order {
  OrderKind kind = OrderKind::kLoad;
  // Of kAllocate.
  int64_t page_bytes = 0;
  int32_t block_count = 0;  // pages; a block of all layers takes one
  int32_t block_len = 0;
  int32_t host_block_count = 0;
  // Of kMoveBlocks: pairs of numbers in the place of the block tables.
  int32_t moves = 0;
  // Of kStep.
  int32_t rows = 0;
  int32_t spans = 0;
  int32_t wanted = 0;
  int32_t embedded = 0;  // rows that have embeddings of images in place of their tokens'
  int32_t has_grid = 0;  // whether grid_positions() holds the rows' positions
  // Of kPlaceAdapter and kDropAdapter.
  int32_t slot = 0;
  int32_t directory_bytes = 0;
  char directory[kLongestPath] = {};
};

class StepChannel {
 public:
  // Makes the memory. Throws Error(kUnavailable).
  explicit StepChannel(const ChannelShape& shape);
  // Maps that of file descriptor `fd`, which the engine made. Throws Error.
  explicit StepChannel(int fd);

  int fd() const { return fd_.get(); }
  const ChannelShape& shape() const;

  Order& order() const;
  int32_t* tokens() const { return at<int32_t>(tokens_); }                  // [rows]
  ChannelSpan* spans() const { return at<ChannelSpan>(spans_); }            // [spans]
  int32_t* blocks() const { return at<int32_t>(blocks_); }                  // [blocks]
  float* logits() const { return at<float>(logits_); }                      // [rows, vocab_size]
  float* hidden() const { return at<float>(hidden_); }                      // [rows, hidden_size]
  int32_t* embedded_rows() const { return at<int32_t>(embedded_rows_); }    // [rows], of which order().embedded
  float* embeddings() const { return at<float>(embeddings_); }              // [rows, embedding_width]
  int32_t* grid_positions() const { return at<int32_t>(grid_positions_); }  // [rows, 3]

  // ---- the engine ----

  // Hands over what order() says.
  void give();
  // Whether a rank has done what was given last; waits so long for it.
  bool wait_done(int rank, std::chrono::nanoseconds timeout) const;
  // What a rank says about the last order: facts of the model, or, if it failed, why.
  bool has_failed(int rank) const;
  std::string text(int rank) const;

  // ---- a worker ----

  // Whether there is an order that this rank has not done; waits so long for it.
  bool wait_order(int rank, std::chrono::nanoseconds timeout) const;
  // The order is done. `text` is cut to what there is room for.
  void finish(int rank, bool has_failed, std::string_view text);

 private:
  struct Header;
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  struct Rank;

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_.get() + offset);
  }
  Header& header() const;
  Rank& rank(int index) const;
  void lay_out(const ChannelShape& shape);
  void map();

  FileDescriptor fd_;
  std::unique_ptr<std::byte, Unmap> memory_;
  size_t bytes_ = 0;
  // Offsets.
  size_t tokens_ = 0, spans_ = 0, blocks_ = 0, logits_ = 0, hidden_ = 0;
  size_t embedded_rows_ = 0, embeddings_ = 0, grid_positions_ = 0;
};

}  // namespace turbomind
