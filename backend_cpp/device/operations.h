// Operation table of a device (kernels/operation.h).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "kernels/operation.h"

namespace turbomind {

class OperationTable {
 public:
  OperationTable() = default;
  // Those of a list that a class of operators has: as its own method, or on the queue() that its kernels are given.
  template <class Device, class... Ops>
  static OperationTable of(OperationList<Ops...>) {
    OperationTable table;
    (table.add<Device, Ops>(), ...);
    return table;
  }

  // Null where the device lacks it.
  template <class Op>
  OperationFunction<Op> find() const {
    const auto found = functions_.find(Op::kName);
    return found == functions_.end() ? nullptr : reinterpret_cast<OperationFunction<Op>>(found->second);
  }
  // The same for what a model cannot do without, once, while it is loaded: throws Error that names the operation.
  template <class Op>
  OperationFunction<Op> require() const {
    const auto function = find<Op>();
    if (function != nullptr) return function;
    throw invalid_argument("the model needs the operation " + std::string(Op::kName) +
                           ", which this device lacks: choose another device");
  }

 private:
  using Untyped = void (*)();

  template <class Device, class Op>
  void add() {
    constexpr bool is_method = requires(Device& device, const Op& op) { device.run(op); };
    if constexpr (is_method || requires(Device& device, const Op& op) { op.run(device.queue()); }) {
      const OperationFunction<Op> function = [](Operators& ops, const Op& op) {
        auto& device = static_cast<Device&>(ops);
        if constexpr (is_method) {
          device.run(op);
        } else {
          op.run(device.queue());
        }
      };
      functions_[Op::kName] = reinterpret_cast<Untyped>(function);
    }
  }

  std::map<std::string_view, Untyped> functions_;
};

}  // namespace turbomind
