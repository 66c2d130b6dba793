// In place of the CUDA toolkit's header.
#pragma once

#include "testing/cuda_emulated/deferred.h"
#include "testing/cuda_emulated/kernel_language.h"
#include "testing/cuda_emulated/launch_limits.h"
#include "testing/cuda_emulated/runtime.h"
