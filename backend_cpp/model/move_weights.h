// Brings weights from the host's memory to a device that has its own.
#pragma once

#include "device/operators.h"
#include "model/weights.h"

namespace turbomind {

// Views point to the device's memory afterwards; the host's is given back piece by piece. Does nothing where the device
// shares the host's memory.
void move_weights(Operators& ops, Weights& weights);

}  // namespace turbomind
