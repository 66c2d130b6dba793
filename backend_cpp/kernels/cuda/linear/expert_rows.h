#pragma once

namespace turbomind::cuda {

// Rows that go to one expert, out of the list that is sorted by experts.
struct ExpertRows {
  int expert;
  int first;
  int count;
};

}  // namespace turbomind::cuda
