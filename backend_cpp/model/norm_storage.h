// Norm weights in memory.
#pragma once

#include <string>

#include "base/aligned_buffer.h"
#include "kernels/norm.h"
#include "model/spec/model_spec.h"
#include "weights/weight_reader.h"

// Names all members of a struct of weights for who visits them; one that is not named does not compile.
#define WEIGHT_MEMBERS(...)           \
  template <class Visit>              \
  void visit_members(Visit&& visit) { \
    auto& [__VA_ARGS__] = *this;      \
    visit(__VA_ARGS__);               \
  }

namespace turbomind {

// A norm's; owns what `view` points to.
struct NormStorage {
  AlignedBuffer weight;
  AlignedBuffer bias;
  NormWeight view;

  // `name`.weight and, where there is one, `name`.bias, of `size` elements.
  static NormStorage load(const WeightReader& read, const std::string& name, const Slice& size, const NormSpec& spec,
                          bool has_bias) {
    NormStorage storage{read.vector(name + ".weight", size), {}, {}};
    for (int i = 0; i < size.size(); ++i) storage.weight.as<float>()[i] += spec.offset;
    if (has_bias) storage.bias = read.vector(name + ".bias", size);
    storage.view = {spec.kind, spec.eps, storage.weight.as<float>(), storage.bias.as<float>()};
    return storage;
  }
};

}  // namespace turbomind
