// Compute threads of this process: how many, and which let others go first.
#pragma once

#include <filesystem>
#include <future>
#include <vector>

namespace turbomind {

// Processors' worth of time that control groups leave to this process, infinity where they set no limit: the least of
// its group and of those around it.
//   cgroups  where they are mounted: /sys/fs/cgroup, or a folder like it (version 2, or "cpu" of version 1 below it)
//   own      which groups the process is in: /proc/self/cgroup, or a file like it
double cpu_quota(const std::filesystem::path& cgroups, const std::filesystem::path& group_path);

// Threads for `allowed` processors, at least 1. Hyperthreads of a core share its arithmetic, so from kFewCores on there
// is one thread a core, and the others are left to what else runs; fewer cores use what little the second ones add.
//   root  what the system says of its devices: /sys/devices/system, or a folder like it
inline constexpr int kFewCores = 4;
int threads_for(const std::filesystem::path& root, const std::vector<int>& allowed, double quota);

// Those of this process: affinity mask, quota, cores, and OMP_NUM_THREADS, which may lower it.
int available_cpu_count();

// Gives the calling thread, and those that it starts from then on, the priority of this niceness, unless it has a lower
// one: as long as they live, since to raise it again takes privileges.
void lower_thread_priority(int niceness);
inline constexpr int kBackgroundNiceness = 8;  // a sixth of the share of a thread of normal priority

// Returns work() of a thread of its own, which other threads of the machine go before, as those that it starts.
template <class Work>
auto run_in_background(const Work& work) {
  return std::async(std::launch::async,
                    [&work] {
                      lower_thread_priority(kBackgroundNiceness);
                      return work();
                    })
      .get();
}

}  // namespace turbomind
