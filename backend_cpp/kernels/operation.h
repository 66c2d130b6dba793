// Operation: a kernel that some layers need, which a device has by its name or lacks. A struct of its operands:
//
//   struct Halve {
//     static constexpr std::string_view kName = "halve";
//
//     float* x = nullptr;  // [rows, size]
//     int rows = 0;
//     int size = 0;
//
//     void run(ThreadPool& pool) const;   // in kernels/cpu; what it says, all devices take and do
//     void run(CudaStream stream) const;  // in kernels/cuda, where pointers are the GPU's; not declared: CUDA lacks it
//   };
//
// kernels/all_operations.h lists them: tables of devices (device/operations.h) and the tests' calls follow. One that
// needs what a device keeps, scratch memory or spans, is a method of the device: void run(const Halve&).
#pragma once

#include <string_view>

#include "base/thread_pool.h"

struct CUstream_st;

namespace turbomind {

class Operators;

using CudaStream = CUstream_st*;

template <class Op>
using OperationFunction = void (*)(Operators&, const Op&);

template <class... Ops>
struct OperationList {};

}  // namespace turbomind
