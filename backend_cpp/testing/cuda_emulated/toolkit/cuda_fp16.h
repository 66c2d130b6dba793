// In place of the CUDA toolkit's header.
#pragma once

#include "testing/cuda_emulated/types.h"
