#include "base/cpu_share.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>

#include "base/topology.h"

namespace turbomind {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Of version 2: "max 100000" or "150000 100000".
double limit_in(const std::filesystem::path& folder) {
  std::ifstream file(folder / "cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kNoLimit;
  return std::atof(quota.c_str()) / period;
}

// Of version 1; a quota of -1 is none.
double old_limit_in(const std::filesystem::path& folder) {
  double quota = 0, period = 0;
  std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
  std::ifstream(folder / "cpu.cfs_period_us") >> period;
  return quota > 0 && period > 0 ? quota / period : kNoLimit;
}

// The least limit of a group and of those around it. Where a container mounts its own group as the root, the path in
// front of it is not there and sets none.
template <class Limit>
double min_limit(const std::filesystem::path& root, std::filesystem::path group, Limit&& limit) {
  double minimum = limit(root);
  for (; group.has_relative_path(); group = group.parent_path()) {
    minimum = std::min(minimum, limit(root / group.relative_path()));
  }
  return minimum;
}

// Whether a list such as "cpu,cpuacct" names the controller of processor time.
bool names_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

double cpu_quota(const std::filesystem::path& cgroups, const std::filesystem::path& group_path) {
  double quota = std::min(limit_in(cgroups), old_limit_in(cgroups / "cpu"));
  std::ifstream file(group_path);
  for (std::string line; std::getline(file, line);) {  // "0::/group" of version 2, "4:cpu,cpuacct:/group" of version 1
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) quota = std::min(quota, min_limit(cgroups, group, limit_in));
    if (names_cpu(controllers)) quota = std::min(quota, min_limit(cgroups / "cpu", group, old_limit_in));
  }
  return quota;
}

int threads_for(const std::filesystem::path& root, const std::vector<int>& allowed, double quota) {
  std::set<std::string> cores;
  for (const int processor : allowed) {
    const std::string name = "cpu" + std::to_string(processor);
    std::ifstream file(root / "cpu" / name / "topology" / "thread_siblings_list");
    std::string siblings;
    cores.insert(std::getline(file, siblings) ? siblings : name);
  }
  const int processors = static_cast<int>(allowed.size());
  const int core_count = static_cast<int>(cores.size());
  const int threads = core_count >= kFewCores ? core_count : std::min(processors, kFewCores);
  return std::max(1, static_cast<int>(std::min<double>(threads, std::ceil(quota))));
}

int available_cpu_count() {
  const std::vector<int> allowed = allowed_processors();
  int count = allowed.empty()
                  ? static_cast<int>(std::thread::hardware_concurrency())
                  : threads_for("/sys/devices/system", allowed, cpu_quota("/sys/fs/cgroup", "/proc/self/cgroup"));
  if (const char* requested = std::getenv("OMP_NUM_THREADS")) {
    if (const int number = std::atoi(requested); number > 0) count = std::min(count, number);
  }
  return std::max(count, 1);
}

void lower_thread_priority(int niceness) {
  const auto thread = static_cast<id_t>(gettid());
  setpriority(PRIO_PROCESS, thread, std::max(getpriority(PRIO_PROCESS, thread), niceness));
}

}  // namespace turbomind
