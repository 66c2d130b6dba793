// Conversion of operands from Python, for operations and operators: the fields of a struct are a sequence in
// their order, enumerations numbers, and pointers and views tensors or arrays, which are copied to the device, and back
// when it is done: results are where tests want them. A pointer to structs or pointers is a list of what each is made
// of; of equal lists there is one copy. None is null.
#pragma once

#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/packed_weight.h"
#include "kernels/recurrence.h"
#include "python/fields.h"
#include "testing/bindings/device.h"

namespace turbomind {

class Arguments {
 public:
  explicit Arguments(Operators& ops) : ops_(ops) {}

  template <class T>
  T take(const pybind11::object& given) {
    if constexpr (std::is_arithmetic_v<T>) {
      return given.cast<T>();
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(given.cast<int>());
    } else if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(address<std::remove_cv_t<std::remove_pointer_t<T>>>(given));
    } else if constexpr (std::is_same_v<T, LinearWeight>) {
      return (pybind11::hasattr(given, "view") ? given.attr("view") : given).cast<LinearWeight>();
    } else if constexpr (std::is_same_v<T, LinearInput>) {
      if (!pybind11::isinstance<pybind11::tuple>(given)) return take<const float*>(given);
      // The norm, or the gate's activation, the matrix and a workspace.
      const auto [prologue, x, workspace] =
          given.cast<std::tuple<pybind11::object, pybind11::object, pybind11::object>>();
      if (pybind11::isinstance<pybind11::int_>(prologue)) {
        return LinearInput::gated(take<Activation>(prologue), take<float*>(x), take<float*>(workspace));
      }
      return LinearInput::normed(norms_.emplace_back(take<NormWeight>(prologue)), take<float*>(x),
                                 take<float*>(workspace));
    } else if constexpr (std::is_same_v<T, TypedRows>) {
      return take<float*>(given);
    } else if constexpr (std::is_same_v<T, StridedRows>) {
      if (given.is_none()) return {};
      const View view(*this, given);
      return {view.first, view.stride(0)};
    } else if constexpr (std::is_same_v<T, HeadsView>) {
      if (given.is_none()) return {};
      const View view(*this, given);  // of a matrix: each row is a head
      const int heads = view.dims() == 3 ? view.size(1) : 1;
      return {view.first, view.size(0), view.stride(0), heads, heads > 1 ? view.stride(1) : 0, view.size(-1)};
    } else {
      return take_fields<T>(*this, pybind11::tuple(given));
    }
  }

  template <class... T>
  std::tuple<T...> take_all(const pybind11::tuple& given) {
    if (given.size() != sizeof...(T)) throw pybind11::type_error("takes " + std::to_string(sizeof...(T)) + " operands");
    return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      return std::tuple<T...>{take<T>(given[kIndex])...};
    }(std::index_sequence_for<T...>());
  }

  static pybind11::array as_array(const pybind11::object& given) {
    return pybind11::hasattr(given, "numpy") ? given.attr("numpy")() : given;
  }

  void fetch() {
    for (auto& [key, copy] : copies_) {
      if (copy.array.writeable()) ops_.download(copy.on_device(), copy.bytes, copy.array.mutable_data());
    }
  }

 private:
  // Memory from an array's first element to its last, as far from a multiple of 16 as there.
  struct Copy {
    pybind11::object owner;
    pybind11::array array;
    size_t bytes = 0;
    size_t shift = 0;
    AlignedBuffer memory;

    std::byte* on_device() const { return memory.as<std::byte>() + shift; }
  };
  struct View {
    View(Arguments& all, const pybind11::object& given) : array(as_array(given)) {
      if (size(-1) > 1 && stride(dims() - 1) != 1) throw invalid_argument("numbers of a row have no gaps");
      first = reinterpret_cast<float*>(all.copied(array, sizeof(float)));
    }
    int dims() const { return static_cast<int>(array.ndim()); }
    int size(int dimension) const {
      return static_cast<int>(array.shape(dimension < 0 ? dims() + dimension : dimension));
    }
    size_t stride(int dimension) const { return static_cast<size_t>(array.strides(dimension)) / sizeof(float); }

    pybind11::array array;
    float* first = nullptr;
  };

  template <class T>
  std::byte* address(const pybind11::object& given) {
    if (given.is_none()) return nullptr;
    if constexpr ((std::is_class_v<T> && !std::is_same_v<T, half>) || std::is_pointer_v<T>) {
      Copy& copy = copies_[given.ptr()];
      if (copy.owner) return copy.on_device();
      std::vector<T> elements;
      for (const pybind11::handle element : given) {
        elements.push_back(take<T>(pybind11::reinterpret_borrow<pybind11::object>(element)));
      }
      copy.owner = given;
      copy.array = pybind11::array();
      copy.memory = ops_.allocate(elements.size() * sizeof(T));
      ops_.upload(elements.data(), copy.memory.size(), copy.on_device());
      ops_.wait();  // `elements` go
      return copy.on_device();
    } else {
      constexpr bool is_bytes = std::is_void_v<T> || std::is_same_v<T, std::byte>;
      const pybind11::array array = as_array(given);
      if ((array.flags() & pybind11::array::c_style) == 0) throw invalid_argument("rows of a pointer have no gaps");
      return copied(array, is_bytes ? 0 : sizeof(std::conditional_t<is_bytes, char, T>));
    }
  }

  std::byte* copied(const pybind11::array& array, size_t item_bytes) {
    if (item_bytes > 0 && static_cast<size_t>(array.itemsize()) != item_bytes) {
      throw invalid_argument("an array's elements have " + std::to_string(array.itemsize()) + " bytes, not " +
                             std::to_string(item_bytes));
    }
    size_t bytes = array.size() > 0 ? static_cast<size_t>(array.itemsize()) : 0;
    for (pybind11::ssize_t i = 0; i < array.ndim() && bytes > 0; ++i) {
      bytes += static_cast<size_t>(array.shape(i) - 1) * static_cast<size_t>(array.strides(i));
    }
    Copy& copy = copies_[array.data()];
    if (copy.memory.size() == 0) {
      constexpr size_t kAlignment = 16;
      copy.array = array;
      copy.bytes = bytes;
      copy.shift = reinterpret_cast<uintptr_t>(array.data()) % kAlignment;
      copy.memory = ops_.allocate(copy.shift + bytes);
      ops_.upload(array.data(), bytes, copy.on_device());
    }
    if (copy.bytes < bytes) throw invalid_argument("the first view of an array must be its largest");
    return copy.on_device();
  }

  Operators& ops_;
  std::list<NormWeight> norms_;
  std::map<const void*, Copy> copies_;  // by the array's first element, or the list
};

// Calls `function` with operands of these types.
template <class... Types, class Function>
void call_with(TestDevice& device, const pybind11::tuple& given, Function&& function) {
  Arguments arguments(*device.ops);
  std::apply(function, arguments.take_all<std::decay_t<Types>...>(given));
  arguments.fetch();
}

// A linear layer's weight, given as the fields of LinearWeight: `data` is row-major, and becomes tiled where the device
// has that, or packed.
class WeightOnDevice {
 public:
  WeightOnDevice(TestDevice& device, const pybind11::args& fields)
      : arguments_(*device.ops), view_(take_fields<LinearWeight>(arguments_, fields)), expert_(view_), layer_(view_) {
    if (view_.is_packed() ? device.ops->shares_host_memory() : !device.has_tiled_weights) return;
    const pybind11::array data = Arguments::as_array(fields[0]);
    std::vector<std::byte> bytes(view_.is_packed() ? static_cast<size_t>(data.nbytes()) : tiled_bytes(view_));
    if (view_.is_packed()) {
      std::memcpy(bytes.data(), data.data(), bytes.size());
    } else {
      tile_rows(view_, bytes.data());
    }
    laid_out_.emplace(*device.ops, bytes.data(), bytes.size());
    layer_.data = laid_out_->data();
    if (view_.is_packed()) {
      device.ops->lay_out(layer_);
    } else {
      layer_.is_tiled = true;
      expert_ = layer_;
    }
  }
  // As tables and operations on heads read it; as experts do; as linear layers do.
  const LinearWeight& view() const { return view_; }
  const LinearWeight& expert() const { return expert_; }
  const LinearWeight& layer() const { return layer_; }

 private:
  Arguments arguments_;
  std::optional<OnDevice<std::byte>> laid_out_;
  LinearWeight view_;
  LinearWeight expert_;
  LinearWeight layer_;
};

}  // namespace turbomind
