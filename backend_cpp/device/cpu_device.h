// The CPU as a device (device/device.h).
#pragma once

#include "device/device.h"

namespace turbomind {

// Its ranks share the machine's cores.
Device cpu_device();

}  // namespace turbomind
