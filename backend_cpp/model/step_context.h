// What the parts of the decoder share during a step.
#pragma once

#include "device/operators.h"

namespace turbomind {

struct StepContext {
  Operators& ops;
  int rows;
};

}  // namespace turbomind
