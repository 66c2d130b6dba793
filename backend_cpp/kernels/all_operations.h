// List of all operations (kernels/operation.h).
#pragma once

#include "kernels/activation.h"
#include "kernels/compressed_attention.h"
#include "kernels/disentangled_attention.h"
#include "kernels/head_linear.h"
#include "kernels/lora.h"
#include "kernels/ngrams.h"
#include "kernels/recurrence.h"
#include "kernels/sparse_attention.h"
#include "kernels/streams.h"

namespace turbomind {

using AllOperations = OperationList<CausalConv, ChooseBestBlocks, ChooseCompressedKeys, ChooseKeys, CompressedAttention,
                                    CompressKeys, AltupCorrect, ActivationSparsity, AddToParts, DisentangledAttention,
                                    EmbedNgrams, GatedLru, GateNgrams, HeadLinear, LoraExpand, LoraGather, LoraShrink,
                                    MatchRms, MeanOfParts, MixParts, AltupPredict, Recurrence, RecurrenceGates,
                                    ScaledSum, SelectiveScan, SparseAttention, WriteCacheRows, Xielu>;

}  // namespace turbomind
