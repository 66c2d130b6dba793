// The operations (kernels/operation.h) that a device has.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "kernels/operation.h"

namespace turbomind {

class OperationTable {
 public:
  // kFunction takes a Device, a class of operators, or the queue() that its kernels are given; then the arguments.
  template <class Device, auto kFunction, class... Arguments>
  void add(const Operation<Arguments...>& operation) {
    const typename Operation<Arguments...>::Function function = [](Operators& ops, Arguments... arguments) {
      auto& device = static_cast<Device&>(ops);
      if constexpr (std::is_invocable_v<decltype(kFunction), Device&, Arguments...>) {
        std::invoke(kFunction, device, arguments...);
      } else {
        kFunction(device.queue(), arguments...);
      }
    };
    functions_[operation.name] = reinterpret_cast<Untyped>(function);
  }

  // Null where the device lacks it.
  template <class... Arguments>
  typename Operation<Arguments...>::Function find(const Operation<Arguments...>& operation) const {
    const auto found = functions_.find(operation.name);
    if (found == functions_.end()) return nullptr;
    return reinterpret_cast<typename Operation<Arguments...>::Function>(found->second);
  }
  // The same for what a model cannot do without, once, while it is loaded: throws Error that names the operation.
  template <class... Arguments>
  typename Operation<Arguments...>::Function require(const Operation<Arguments...>& operation) const {
    const auto function = find(operation);
    if (function != nullptr) return function;
    throw invalid_argument("the model needs the operation " + std::string(operation.name) +
                           ", which this device lacks: choose another device");
  }

 private:
  using Untyped = void (*)();

  std::map<std::string_view, Untyped> functions_;
};

}  // namespace turbomind
