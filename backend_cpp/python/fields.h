// Conversion of Python sequences to C++ structs, in the order of the fields. A class that knows how to take one field
// has a method `T take<T>(object)`.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

namespace turbomind {

template <class Taker>
struct GivenField {
  Taker& taker;
  pybind11::object given;

  template <class T>
  operator T() const {
    return taker.template take<T>(given);
  }
};

struct AnyField {
  template <class T>
  operator T() const;
};

template <class T, class... Fields>
constexpr size_t field_count() {
  if constexpr (requires { T{Fields()..., AnyField()}; }) {
    return field_count<T, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

template <class T, class Taker>
T take_fields(Taker& taker, const pybind11::tuple& given) {
  constexpr size_t kCount = field_count<T>();
  if (given.size() != kCount) {
    throw pybind11::type_error(std::to_string(given.size()) + " values for " + std::to_string(kCount) + " fields");
  }
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return T{GivenField<Taker>{taker, given[kIndex]}...};
  }(std::make_index_sequence<kCount>());
}

}  // namespace turbomind
