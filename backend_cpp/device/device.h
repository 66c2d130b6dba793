// Device registry of this build. Code above this folder finds a device by its traits, not by its name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device/operators.h"

namespace turbomind {

// The devices that hold the shards of one model: a rank each.
class RankGroup {
 public:
  virtual ~RankGroup() = default;

  virtual int size() const = 0;
  // The operators of a rank, whose all_reduce and all_gather are of this group; they may outlive it. To be called, and
  // they to be used and destroyed, in a thread of the rank's own.
  virtual std::unique_ptr<Operators> make_operators(int rank) = 0;
  // For a rank that cannot continue: what waits for it in another throws, and so does every later sum and gathering.
  // From any thread.
  virtual void fail() noexcept = 0;
};

// Preferences and capabilities of a device.
struct DeviceTraits {
  // Where the user says nothing: sequences of a step, tokens of one in place of the default of max_prefill_token_num,
  // and up to how many bytes the cache takes its default share of the free memory.
  int batch_size = 0;
  int step_tokens = 0;
  size_t cache_limit = 0;
  // Whether all ranks of a model take from one memory.
  bool ranks_share_memory = false;
  // Whether its linear layers take the codes of all GGUF types (WeightOptions::takes_gguf_blocks).
  bool takes_gguf_blocks = false;
  // Whether its linear layers take weights of 32 and 16 bits as tiles (LinearWeight::is_tiled).
  bool has_tiled_weights = false;
  // Whether drafts pay where the user says nothing.
  bool drafts_pay = false;
  // Whether it has choose_keys and sparse_attention.
  bool has_sparse_attention = false;
};

struct Device {
  std::string name;
  DeviceTraits traits;
  int (*count)();  // of this machine
  // `threads`: of the CPU; 0: all. Throws Error that says what is missing.
  std::unique_ptr<Operators> (*make)(int threads);
  std::unique_ptr<RankGroup> (*make_group)(int ranks, int threads);
  // To be called before anything else of the device where a model will be spread over ranks.
  void (*expect_ranks)();
};

// How a device of this build becomes known, before main() begins; one added later is preferred by "auto".
bool add_device(const Device& device);
// By its name; "auto": the preferred one of those that the machine has. Throws Error that names what there is.
const Device& find_device(const std::string& name);
// The names of the devices that the machine has; the preferred one is the last.
std::vector<std::string> available_devices();

}  // namespace turbomind
