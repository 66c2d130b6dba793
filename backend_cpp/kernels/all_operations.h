// Every operation (kernels/operation.h).
#pragma once

#include "kernels/activation.h"
#include "kernels/head_linear.h"
#include "kernels/lora.h"
#include "kernels/recurrence.h"
#include "kernels/sparse_attention.h"
#include "kernels/streams.h"

namespace turbomind {

using AllOperations = OperationList<CausalConv, ChooseKeys, AltupCorrect, ActivationSparsity, HeadLinear, LoraExpand,
                                    LoraGather, LoraShrink, MatchRms, AltupPredict, Recurrence, RecurrenceGates,
                                    ScaledSum, SelectiveScan, SparseAttention, Xielu>;

}  // namespace turbomind
