// NUMA nodes and the placement of ranks on them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace turbomind {

// The numbers in a list such as "0-3,8": Linux's cpulist (Documentation/admin-guide/cputopology.rst). Throws
// Error(kInvalidArgument) for anything else.
std::vector<int> parse_processors(const std::string& list);

// The processors of each NUMA node, those without any that `allowed` holds left out; none where `root` does not say.
//   root     what the system says of its devices: /sys/devices/system, or a folder like it
//   allowed  those this process may use, ascending
std::vector<std::vector<int>> read_nodes(const std::filesystem::path& root, const std::vector<int>& allowed);

// The processors of a rank: those of its share of the nodes, so that its weights and its cache lie in memory of its
// own. Empty where one node is all there is: the system may put its threads anywhere.
std::vector<int> processors_of_rank(const std::vector<std::vector<int>>& nodes, int rank, int ranks);

// Those this process may use.
std::vector<int> allowed_processors();
// Keeps the calling thread, and those it starts, on some processors; does nothing where there are none.
void keep_thread_on(const std::vector<int>& processors);

}  // namespace turbomind
