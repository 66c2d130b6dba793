// A function that some layers or one family of models need, and that a device has by its name, or lacks
// (device/operations.h). The CPU's says what all devices take and do.
#pragma once

#include <string_view>

#include "base/thread_pool.h"

namespace turbomind {

class Operators;

template <class... Arguments>
struct Operation {
  using Function = void (*)(Operators&, Arguments...);

  constexpr Operation(std::string_view its_name, void (*)(ThreadPool&, Arguments...)) : name(its_name) {}

  std::string_view name;
};

}  // namespace turbomind
