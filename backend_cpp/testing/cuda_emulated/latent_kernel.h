// A library's latent attention for tests: plain loops that follow the plan as FlashInfer's kernels do.
#pragma once

namespace turbomind::emulated {

// What it does from the next device on: there is none, it is right, or it leaves a key out.
enum class LatentLibrary { kNone, kRight, kWrong };
void set_latent_library(LatentLibrary library);
// Launches since the last call of set_latent_library.
int latent_launches();

}  // namespace turbomind::emulated
