#include "testing/cuda_emulated/libraries.h"

#include <map>
#include <mutex>

namespace turbomind::emulated {

namespace {

struct State {
  Library library = Library::kNone;
  int launches = 0;
};

std::mutex mu;
std::map<std::string, State> states;  // guarded by mu

}  // namespace

void set_library(const std::string& name, Library library) {
  const std::lock_guard lock(mu);
  states[name] = {library, 0};
}

Library library(const std::string& name) {
  const std::lock_guard lock(mu);
  return states[name].library;
}

void count_library_launch(const std::string& name) {
  const std::lock_guard lock(mu);
  ++states[name].launches;
}

int library_launches(const std::string& name) {
  const std::lock_guard lock(mu);
  return states[name].launches;
}

}  // namespace turbomind::emulated
