// Checkpoint module of each row of an engine tensor, for LoRA.
#pragma once

#include <string>
#include <vector>

namespace turbomind {

struct RowSources {
  // A matrix [out_features, in_features] of the checkpoint, by the name of the layer it is the weight of.
  struct Module {
    std::string name;
    int out_features = 0;
    int in_features = 0;
  };
  // The next `count` rows of the tensor: rows first, first + 1, ... of a module.
  struct Run {
    int module = 0;
    int first = 0;
    int count = 0;
  };

  std::vector<Module> modules;
  std::vector<Run> runs;  // empty where the tensor is not made of whole rows of modules
};

}  // namespace turbomind
