// How many threads compute, by folders made up as Linux would fill them.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "base/cpu_share.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

// A folder of files; removed in the end.
class FakeFiles {
 public:
  FakeFiles() : root_(std::filesystem::temp_directory_path() / ("cpu-share-" + std::to_string(getpid()))) {}
  ~FakeFiles() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  std::filesystem::path at(const std::string& path) const { return root_ / path; }
  double quota() const { return cpu_quota(at("cgroup"), at("own")); }

 private:
  std::filesystem::path root_;
};

std::vector<int> first_processors(int count) {
  std::vector<int> processors(static_cast<size_t>(count));
  std::iota(processors.begin(), processors.end(), 0);
  return processors;
}

// Processors i and i + cores are the hyperthreads of core i.
void write_hyperthreads(const FakeFiles& files, int cores) {
  for (int i = 0; i < 2 * cores; ++i) {
    const int core = i % cores;
    files.write("system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list",
                std::to_string(core) + "," + std::to_string(core + cores));
  }
}

}  // namespace

TEST(the_least_quota_of_a_group_and_those_around_it_counts) {
  const FakeFiles files;
  CHECK(std::isinf(files.quota()));
  files.write("own", "0::/system.slice/llm.service");
  files.write("cgroup/system.slice/cpu.max", "300000 100000");
  files.write("cgroup/system.slice/llm.service/cpu.max", "max 100000");
  CHECK(files.quota() == 3.0);
  files.write("cgroup/system.slice/llm.service/cpu.max", "150000 100000");
  CHECK(files.quota() == 1.5);
  files.write("cgroup/cpu.max", "50000 100000");  // a container's own group, mounted as the root
  CHECK(files.quota() == 0.5);
}

TEST(quotas_of_the_first_version_of_groups_count) {
  const FakeFiles files;
  files.write("own", "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n0::/");
  files.write("cgroup/cpu/cpu.cfs_quota_us", "-1");
  files.write("cgroup/cpu/cpu.cfs_period_us", "100000");
  CHECK(std::isinf(files.quota()));
  files.write("cgroup/cpu/docker/abc/cpu.cfs_quota_us", "250000");
  files.write("cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000");
  CHECK(files.quota() == 2.5);
}

TEST(there_is_a_thread_a_core_where_cores_are_many) {
  const double none = std::numeric_limits<double>::infinity();
  const FakeFiles files;
  write_hyperthreads(files, 8);
  CHECK(threads_for(files.at("system"), first_processors(16), none) == 8);
  CHECK(threads_for(files.at("system"), first_processors(8), none) == 8);
  CHECK(threads_for(files.at("system"), {0, 1, 2, 3, 4, 8, 9, 10, 11, 12}, none) == 5);
  CHECK(threads_for(files.at("system"), first_processors(16), 2.5) == 3);
  CHECK(threads_for(files.at("nowhere"), first_processors(6), none) == 6);
}

TEST(few_cores_use_their_hyperthreads) {
  const double none = std::numeric_limits<double>::infinity();
  const FakeFiles files;
  write_hyperthreads(files, 2);
  CHECK(threads_for(files.at("system"), first_processors(4), none) == 4);
  CHECK(threads_for(files.at("system"), {0, 2}, none) == 2);
  CHECK(threads_for(files.at("system"), {1}, none) == 1);
  CHECK(threads_for(files.at("system"), first_processors(4), 0.5) == 1);
}

TEST(work_in_the_background_and_its_threads_let_others_go_first) {
  const auto niceness = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); };
  const int normal = niceness();
  const int lowered = run_in_background([&] {
    int of_started = 0;
    std::thread([&] { of_started = niceness(); }).join();
    return std::min(niceness(), of_started);
  });
  CHECK_EQUAL(lowered, std::max(normal, 8));
  CHECK_EQUAL(niceness(), normal);
}

}  // namespace turbomind::testing
