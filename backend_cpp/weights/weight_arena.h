// Arena for many small weights in few mappings: a process may have only some ten thousand (vm.max_map_count), and a
// model may have more experts than that.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/aligned_buffer.h"
#include "weights/linear_storage.h"

namespace turbomind {

class WeightArena {
 public:
  // `only_sizes`: as WeightOptions has it.
  explicit WeightArena(bool only_sizes = false) : only_sizes_(only_sizes) {}

  // Copies a layer's data here; the view is valid as long as the arena lives, wherever it is moved.
  LinearWeight add(const LinearStorage& storage);

  // Lets `move` put each chunk elsewhere, and makes `views`, all that add() returned, point there.
  void move(const std::function<void(AlignedBuffer& chunk)>& move, const std::vector<LinearWeight*>& views);

 private:
  void* copy(const AlignedBuffer& source);

  bool only_sizes_;
  std::vector<AlignedBuffer> chunks_;
  size_t used_ = 0;  // of the last chunk
};

}  // namespace turbomind
