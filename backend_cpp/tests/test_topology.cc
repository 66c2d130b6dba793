// Which processors a rank runs on, by folders made up as Linux would fill them.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/topology.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

using Nodes = std::vector<std::vector<int>>;

// A folder with a node for each list, numbered by twos; removed in the end.
class FakeSystem {
 public:
  explicit FakeSystem(const std::vector<std::string>& lists)
      : root_(std::filesystem::temp_directory_path() / ("topology-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(root_ / "node" / "power");
    for (size_t i = 0; i < lists.size(); ++i) {
      const auto node = root_ / "node" / ("node" + std::to_string(2 * i));
      std::filesystem::create_directories(node);
      std::ofstream(node / "cpulist") << lists[i] << "\n";
    }
  }
  ~FakeSystem() { std::filesystem::remove_all(root_); }

  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path root_;
};

}  // namespace

TEST(lists_of_processors_are_read_or_refused) {
  CHECK(parse_processors("0-3,8,10-11\n") == std::vector<int>({0, 1, 2, 3, 8, 10, 11}));
  CHECK(parse_processors("5") == std::vector<int>({5}));
  CHECK(parse_processors("\n").empty());
  for (const char* bad : {"a", "1-", "-1", "1,,2", "0x3", "1 2"}) {
    bool rejected = false;
    try {
      parse_processors(bad);
    } catch (const Error&) {
      rejected = true;
    }
    CHECK(rejected);
  }
}

TEST(nodes_hold_the_processors_that_this_process_may_use) {
  const FakeSystem system({"0-3,8-11", "4-7,12-15", "16-17", ""});
  CHECK(read_nodes(system.root(), {0, 1, 2, 9, 12, 13}) == Nodes({{0, 1, 2, 9}, {12, 13}}));
  CHECK(read_nodes(system.root() / "nowhere", {0, 1}).empty());
}

TEST(ranks_share_nodes_or_have_several) {
  const Nodes nodes = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};
  CHECK(processors_of_rank(nodes, 0, 2) == std::vector<int>({0, 1, 2, 3}));
  CHECK(processors_of_rank(nodes, 1, 2) == std::vector<int>({4, 5, 6, 7}));
  for (int rank = 0; rank < 8; ++rank) CHECK(processors_of_rank(nodes, rank, 8) == nodes[rank / 2]);
  CHECK(processors_of_rank(nodes, 2, 3) == std::vector<int>({4, 5, 6, 7}));
  CHECK(processors_of_rank({{0, 1, 2}}, 1, 2).empty());  // one node: wherever the system likes
  CHECK(processors_of_rank({}, 0, 2).empty());
}

TEST(threads_stay_where_the_thread_that_starts_them_is_kept) {
  const std::vector<int> before = allowed_processors();
  CHECK(!before.empty());
  std::vector<int> inherited;
  std::thread([&] {
    keep_thread_on({before.back()});
    std::thread([&] { inherited = allowed_processors(); }).join();
    keep_thread_on({});
    CHECK(allowed_processors() == std::vector<int>({before.back()}));
  }).join();
  CHECK(inherited == std::vector<int>({before.back()}));
  CHECK(allowed_processors() == before);
}

}  // namespace turbomind::testing
