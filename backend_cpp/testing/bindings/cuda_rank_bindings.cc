// Sums over ranks on devices, for tests.
#include "base/thread_team.h"
#include "device/rank_group.h"
#include "testing/bindings/cuda_bindings.h"

namespace turbomind::cuda {

namespace {

// parts [ranks, steps, n] -> what each rank has after each step's sum. Steps are repeatable: the second is captured as
// a graph, which the later ones launch.
Array<float> sum_over_ranks(const Array<float>& parts) {
  const auto ranks = static_cast<int>(parts.shape(0));
  const auto steps = static_cast<size_t>(parts.shape(1));
  const auto count = static_cast<size_t>(parts.shape(2));
  const size_t bytes = count * sizeof(float);
  Array<float> sums({parts.shape(0), parts.shape(1), parts.shape(2)});
  float* results = sums.mutable_data();
  const std::unique_ptr<RankGroup> group = make_rank_group("cuda", ranks, 0);
  ThreadTeam team(ranks, [&] { group->fail(); });
  team.run([&](int rank) {
    const auto ops = group->make_operators(rank);
    const AlignedBuffer x = ops->allocate(bytes);
    for (size_t step = 0; step < steps; ++step) {
      const size_t first = (static_cast<size_t>(rank) * steps + step) * count;
      ops->upload(parts.data() + first, bytes, x.as<void>());
      ops->run_step(1, true, [&] { ops->all_reduce(x.as<float>(), count); });
      ops->download(x.as<void>(), bytes, results + first);
    }
  });
  return sums;
}

}  // namespace

void bind_ranks(pybind11::module_& m) {
  m.def("sum_over_ranks", sum_over_ranks);
}

}  // namespace turbomind::cuda
