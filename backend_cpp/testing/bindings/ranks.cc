// Ranks of a group, each in its own thread.
#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_team.h"
#include "device/device.h"
#include "testing/bindings/device.h"

namespace turbomind {

namespace {

// parts [ranks, steps, n] -> what each rank of a device has after each step's sum, [ranks, steps, n], or after the
// parts were gathered, [ranks, steps, ranks n]. Steps are repeatable: on a GPU the later ones launch a graph, which is
// captured after the first.
Array<float> join_ranks(const std::string& device, const Array<float>& parts, bool gathers) {
  const int ranks = size_of(parts, 0);
  const auto steps = static_cast<size_t>(parts.shape(1));
  const auto count = static_cast<size_t>(parts.shape(2));
  const size_t all = gathers ? count * static_cast<size_t>(ranks) : count;
  Array<float> joined({parts.shape(0), parts.shape(1), static_cast<pybind11::ssize_t>(all)});
  float* results = joined.mutable_data();
  const std::unique_ptr<RankGroup> group = find_device(device).make_group(ranks, 0);
  ThreadTeam team(ranks, [&] { group->fail(); });
  team.run([&](int rank) {
    const auto ops = group->make_operators(rank);
    const AlignedBuffer memory = ops->allocate(all * sizeof(float));
    auto* x = memory.as<float>();
    float* rank_x = gathers ? x + static_cast<size_t>(rank) * count : x;
    for (size_t step = 0; step < steps; ++step) {
      const size_t slice = static_cast<size_t>(rank) * steps + step;
      ops->fill_zero(x, memory.size());
      ops->upload(parts.data() + slice * count, count * sizeof(float), rank_x);
      const auto join = [&] { gathers ? ops->all_gather(x, count) : ops->all_reduce(x, count); };
      if (PreparedSteps* steps = ops->prepared_steps(); steps && step == 1) steps->prepare(1, join);
      ops->run_step(1, true, join);
      ops->download(x, memory.size(), results + slice * all);
    }
  });
  return joined;
}

// Error of each rank when the last one fails while the others wait for it in a sum, maybe of a graph.
std::vector<std::string> abandon_ranks(const std::string& device, int ranks, bool is_graph) {
  const std::unique_ptr<RankGroup> group = find_device(device).make_group(ranks, 0);
  ThreadTeam team(ranks, [&] { group->fail(); });
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  const auto body = [&](int rank) {
    const auto ops = group->make_operators(rank);
    const AlignedBuffer memory = ops->allocate(sizeof(float));
    auto* x = memory.as<float>();
    ops->fill_zero(x, memory.size());
    const auto join = [&] { ops->all_reduce(x, 1); };
    if (is_graph) ops->prepared_steps()->prepare(1, join);
    if (rank == ranks - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      throw internal_error("given up");
    }
    ops->run_step(1, true, join);
    float sum = 0;
    ops->download(x, memory.size(), &sum);
  };
  const auto recorded = [&](int rank) {
    try {
      body(rank);
    } catch (const Error& error) {
      errors[static_cast<size_t>(rank)] = error.what();
      throw;
    }
  };
  try {
    team.run(recorded);
  } catch (const Error&) {
  }
  return errors;
}

}  // namespace

void bind_ranks(pybind11::module_& m) {
  m.def("join_ranks", &join_ranks);
  m.def("abandon_ranks", &abandon_ranks);
}

}  // namespace turbomind
