#include "model/step/program.h"

#include <algorithm>

namespace turbomind {

namespace {

std::string factor_text(float factor) {
  return factor == 1 ? "" : std::to_string(factor) + " ";
}

// "0-4, 6"
std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

void Program::norm(const NormWeight& weight, const Rows& x, const Rows& y) {
  add(y.name + " = norm(" + x.name + ")", [&weight, x = x.data, y = y.data, size = size_](ModelStep& step) {
    step.ops.norm(weight, x, step.rows, size, y);
  });
}

void Program::add_scaled(float factor, const Rows& x, const Rows& y) {
  add(y.name + " += " + factor_text(factor) + x.name, [factor, x = x.data, y = y.data, size = size_](ModelStep& step) {
    step.ops.add_scaled(factor, x, step.rows, size, y);
  });
}

void Program::scale(float factor, const Rows& x) {
  add(x.name + " *= " + std::to_string(factor),
      [factor, x = x.data, size = size_](ModelStep& step) { step.ops.scale_softcap(factor, 0, step.rows, size, x); });
}

void Program::sum_over_ranks(const Rows& x) {
  add("sum " + x.name + " over ranks", [x = x.data, size = static_cast<size_t>(size_)](ModelStep& step) {
    if (step.has_barriers) step.ops.all_reduce(x, static_cast<size_t>(step.rows) * size);
  });
}

Source Program::made(const Source& source) {
  if (!source.rows.has_prologue()) return source;
  add(source.workspace + " = " + source.name,
      [input = source.rows, size = size_](ModelStep& step) { step.ops.materialize(input, step.rows, size); });
  return {source.workspace, source.rows.workspace, ""};
}

std::string Program::text() const {
  struct Alike {
    std::string name;
    std::string lines;
    std::vector<int> layers;
  };
  std::vector<Alike> all;
  for (const Part& part : parts_) {
    std::string lines;
    for (const Operation& operation : part.operations) lines += "  " + operation.text + "\n";
    const auto known =
        std::ranges::find_if(all, [&](const Alike& other) { return other.name == part.name && other.lines == lines; });
    Alike& alike = known == all.end() ? all.emplace_back(Alike{part.name, lines, {}}) : *known;
    if (part.layer >= 0) alike.layers.push_back(part.layer);
  }
  std::string text;
  for (const Alike& alike : all) {
    text += alike.name + (alike.layers.empty() ? "" : " " + ranges_text(alike.layers)) + "\n" + alike.lines;
  }
  return text;
}

}  // namespace turbomind
