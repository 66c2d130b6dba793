// Leave to use the processor's tiles (AMX).
#pragma once

namespace turbomind {

// Whether this processor multiplies tiles of int8 and bfloat16 and the operating system lets this process use them.
// Linux wants to be asked once a process, since a thread's state grows by 8 KiB (arch_prctl(2), ARCH_REQ_XCOMP_PERM);
// it says no where a thread's signal stack is too small for that.
bool can_use_tiles();

}  // namespace turbomind
