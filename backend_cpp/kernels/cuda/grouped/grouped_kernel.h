// Interface of a library's grouped GEMM: many groups in one launch.
//
//   y_g [rows_g, outputs] bfloat16 = x_g [rows_g, inputs] w_g^T      all row-major without gaps
//
// Sums are float32 before they are rounded. How many rows a group has is known on the device alone; a group may have
// none.
#pragma once

#include "kernels/cuda/library_kernels.h"

namespace turbomind::cuda {

// Of x and w.
//   kBFloat16  outputs and inputs are multiples of 8
//   kFloat8    with a scale for each row and kGroupBlock inputs of x [blocks, rows_g] and of w [blocks, outputs], where
//              the last block may be shorter; outputs and inputs are multiples of 16
enum class GroupedType : uint8_t { kNone, kBFloat16, kFloat8 };

inline constexpr int kGroupBlock = 128;

// All on the device, [groups] where not said.
struct GroupedTable {
  int32_t* shapes = nullptr;  // [groups, 3]: rows, outputs, inputs
  int32_t* rows = nullptr;
  int32_t* outputs = nullptr;
  int32_t* inputs = nullptr;
  int64_t* x_strides = nullptr;  // elements from row to row
  int64_t* y_strides = nullptr;
  const void** x = nullptr;
  const void** w = nullptr;
  void** y = nullptr;
  const float** x_scales = nullptr;  // of float8 alone, as w_scales is
  const float** w_scales = nullptr;
};

struct GroupedCall {
  GroupedTable table;
  int groups = 0;
  int rows = 0;  // no more in all groups together
  int outputs = 0;
  int inputs = 0;
  void* workspace = nullptr;  // kGroupedWorkspaceBytes
};

inline constexpr size_t kGroupedWorkspaceBytes = size_t{32} << 20;

struct GroupedKernel {
  int rank;  // those with the higher one are tried first
  const char* name;
  GroupedType type;
  // Of compute capability major.minor, 10 major + minor.
  bool (*runs_on)(int capability);
  void (*run)(cudaStream_t stream, const GroupedCall& call);
};

// Products of groups by a plain kernel of ours: for shapes that a library has no algorithm for.

// The grouped GEMM that GroupedKernel::run launches.
void reference_groups(cudaStream_t stream, GroupedType type, const GroupedCall& call);

}  // namespace turbomind::cuda
