#include "base/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace turbomind {

namespace {

int number_in(std::string_view text, const std::string& list) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number < 0)
    throw invalid_argument("a list of processors must look like 0-3,8, got " + list);
  return number;
}

}  // namespace

std::vector<int> parse_processors(const std::string& list) {
  std::vector<int> numbers;
  std::string_view left = list;
  while (!left.empty() && (left.back() == '\n' || left.back() == ' ')) left.remove_suffix(1);
  while (!left.empty()) {
    const std::string_view part = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), part.size() + 1));
    const size_t dash = part.find('-');
    const int first = number_in(part.substr(0, dash), list);
    const int last = dash == std::string_view::npos ? first : number_in(part.substr(dash + 1), list);
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::vector<int>> read_nodes(const std::filesystem::path& root, const std::vector<int>& allowed) {
  std::vector<std::vector<int>> nodes;
  // Nodes may have gaps between their numbers.
  std::vector<int> numbers;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(root / "node", none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node") && name.size() > 4 && std::all_of(name.begin() + 4, name.end(), ::isdigit))
      numbers.push_back(std::stoi(name.substr(4)));
  }
  std::sort(numbers.begin(), numbers.end());
  for (const int number : numbers) {
    std::ifstream file(root / "node" / ("node" + std::to_string(number)) / "cpulist");
    std::string list;
    std::getline(file, list);
    const std::vector<int> listed = parse_processors(list);
    std::vector<int> usable;
    std::set_intersection(listed.begin(), listed.end(), allowed.begin(), allowed.end(), std::back_inserter(usable));
    if (!usable.empty()) nodes.push_back(std::move(usable));
  }
  return nodes;
}

std::vector<int> processors_of_rank(const std::vector<std::vector<int>>& nodes, int rank, int ranks) {
  const int count = static_cast<int>(nodes.size());
  if (count < 2) return {};
  const int first = rank * count / ranks;
  const int last = std::max(first + 1, (rank + 1) * count / ranks);
  std::vector<int> processors;
  for (int node = first; node < last; ++node) {
    processors.insert(processors.end(), nodes[node].begin(), nodes[node].end());
  }
  return processors;
}

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

void keep_thread_on(const std::vector<int>& processors) {
  if (processors.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof(set), &set);  // where it is refused, threads stay where they may be
}

}  // namespace turbomind
