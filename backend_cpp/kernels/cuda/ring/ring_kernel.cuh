// GEMM of few rows and quantized weights of 8 or 4 bits, on Hopper.
//
// A block is persistent: operands of step after step come through rings in shared memory, across the items that the
// block takes: a warp copies the codes and constants that it alone needs, the copy engine brings activations. Teams of
// four warps widen codes in registers, as the 64-row operand of the matrix instruction of four warps, which reads
// activations from the ring. So no load is waited for, and what is in flight does not depend on registers.
//
// A warp of a team has a tile of 16 outputs. Teams lie across the outputs of an item where there are enough, and else
// divide its steps; their sums meet in shared memory, those of items that split the inputs in global memory, in order.
// Scales act on the sums of a step (kScalesSums), or on the weights before (more rows: no registers for two sums).
#pragma once

#include "kernels/cuda/ring/ring_step.cuh"

namespace turbomind::cuda {

// Writes two neighbouring outputs of a row.
__device__ __forceinline__ void write_pair(const LinearTask& task, float range, int row, int output, float first,
                                           float second) {
  const LinearWeight& weight = task.weight;
  if (row >= task.rows || output >= weight.out_features) return;
  float* y = task.y + row * task.y_stride + output;
  const bool is_pair = output + 1 < weight.out_features;
  float values[2] = {first * range, second * range};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && !is_pair) break;
    if (weight.output_scales != nullptr) values[i] *= weight.output_scales[output + i];
    if (weight.bias != nullptr) values[i] += weight.bias[output + i];
    if (task.accumulates) values[i] += y[i];
  }
  if (is_pair && reinterpret_cast<uintptr_t>(y) % sizeof(float2) == 0) {
    *reinterpret_cast<float2*>(y) = make_float2(values[0], values[1]);
  } else {
    y[0] = values[0];
    if (is_pair) y[1] = values[1];
  }
}

template <class Ring>
__global__ void __launch_bounds__(Ring::kThreads, 1) ring_linear_kernel(LinearTask task, RingPlan plan, float range) {
#if defined(TM_CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kSums = Ring::kSums;
  start_next();
  const RingMemory memory = ring_memory<Ring>(plan);
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) {
    const int used = plan.across * kTeamTiles;
    for (int i = 0; i < plan.stages; ++i) {
      memory.full[i].init(1);
      memory.empty[i].init(used);
    }
    SharedBarrier::publish();
  }
  __syncthreads();
  const int team = warp / 4;
  const int part = team % plan.across;
  const int way = team / plan.across;
  const int lane = threadIdx.x % kWarp;
  const int slot = part * kTeamTiles + warp % 4;
  const int thread = threadIdx.x % 128;
  const bool is_used = way < plan.ways;
  std::byte* quantized = memory.quantized + warp * Ring::kQuantizedStages * Ring::kQuantizedBytes;
  RingQuantized<Ring> copies(task, plan, way, slot);
  if (is_used) {
    copies.write_defaults(task, quantized);
#pragma unroll 1
    for (int i = 0; i < Ring::kQuantizedStages - 1; ++i) copies.copy(task, plan, quantized + i * Ring::kQuantizedBytes);
  }
  await_previous();
  if (!is_used) return;
  const bool copies_rows = part == 0 && warp % 4 == 0 && lane == 0;
  RingRows<Ring> rows(plan, way);
  if (copies_rows) rows.begin(task, plan, memory);
  int quantized_stage = 0;
  int stage = way;
  uint32_t phase = 0;
  int lag = plan.lag;
  for (int item = blockIdx.x; item < plan.items; item += gridDim.x) {
    const RingItem at = ring_item(plan, item);
    float totals[kSums] = {};
#pragma unroll 1
    for (int unit = at.first + way; unit < at.last; unit += plan.ways) {
      const int before = quantized_stage == 0 ? Ring::kQuantizedStages - 1 : quantized_stage - 1;
      copies.copy(task, plan, quantized + before * Ring::kQuantizedBytes);
      if (copies_rows && --lag < 0) rows.advance(task, plan, memory);
      cp_async_wait<Ring::kQuantizedStages - 1>();
      memory.full[stage].wait(phase);
      __syncwarp();
      multiply_step<Ring>(quantized + quantized_stage * Ring::kQuantizedBytes, memory.x + stage * Ring::kXBytes, lane,
                          totals);
      if (lane == 0) memory.empty[stage].arrive();
      quantized_stage = quantized_stage + 1 == Ring::kQuantizedStages ? 0 : quantized_stage + 1;
      stage += plan.ways;
      if (stage >= plan.stages) stage = way, phase ^= 1;
    }

    if (plan.ways > 1) {
      float* thread_sums = memory.sums + part * 128 * kSums + thread;
      barrier(1 + part, plan.ways * 128);  // what was here has been read
      for (int turn = plan.ways - 1; turn > 0; --turn) {
        if (way == turn) {
#pragma unroll
          for (int i = 0; i < kSums; ++i) {
            thread_sums[i * 128] = turn == plan.ways - 1 ? totals[i] : totals[i] + thread_sums[i * 128];
          }
        }
        barrier(1 + part, plan.ways * 128);
      }
      if (way > 0) continue;
#pragma unroll
      for (int i = 0; i < kSums; ++i) totals[i] += thread_sums[i * 128];
    }
    if (plan.splits > 1) {
      const int product = (item / plan.splits) * plan.across + part;
      float4* partials = reinterpret_cast<float4*>(task.partials) +
                         static_cast<size_t>(product) * plan.splits * (kSums / 4 * 128) + thread;
      float4* mine = partials + static_cast<size_t>(at.split) * (kSums / 4 * 128);
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        __stcg(mine + i * 128, make_float4(totals[4 * i], totals[4 * i + 1], totals[4 * i + 2], totals[4 * i + 3]));
      }
      __threadfence();
      barrier(5 + part, 128);
      int32_t* rank = memory.ranks + part;
      if (thread == 0) {
        int32_t* counter = task.counters + product;
        *rank = atomicAdd(counter, 1);
        if (*rank == plan.splits - 1) *counter = 0;
      }
      barrier(5 + part, 128);
      const bool is_last = *rank == plan.splits - 1;
      if (!is_last) continue;
      __threadfence();
      constexpr int kSumsAtOnce = kSums / 4 < 4 ? kSums / 4 : 4;  // that come at once
#pragma unroll
      for (int first = 0; first < kSums / 4; first += kSumsAtOnce) {
        float4 sums[kSumsAtOnce] = {};
#pragma unroll 2
        for (int split = 0; split < plan.splits; ++split) {
          const float4* from = partials + (static_cast<size_t>(split) * (kSums / 4) + first) * 128;
          float4 more[kSumsAtOnce];
#pragma unroll
          for (int i = 0; i < kSumsAtOnce; ++i) more[i] = __ldcg(from + i * 128);
#pragma unroll
          for (int i = 0; i < kSumsAtOnce; ++i) {
            sums[i].x += more[i].x, sums[i].y += more[i].y, sums[i].z += more[i].z, sums[i].w += more[i].w;
          }
        }
#pragma unroll
        for (int i = 0; i < kSumsAtOnce; ++i) {
          float* total = totals + 4 * (first + i);
          total[0] = sums[i].x, total[1] = sums[i].y, total[2] = sums[i].z, total[3] = sums[i].w;
        }
      }
    }
    if (slot >= plan.tiles) continue;
    const int output = (at.first_tile + slot) * kTileOutputs + lane / 4 * 2;
    const int row = at.row_part * Ring::kColumns + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        write_pair(task, range, row + i * 8 + c, output, totals[4 * i + c], totals[4 * i + 2 + c]);
      }
    }
  }
#endif
}

}  // namespace turbomind::cuda
