// How often a text that repeats continues as it did before, by how many tokens of it repeat. Learned from what came.
#pragma once

#include <array>
#include <cstddef>

namespace turbomind {

class MatchChances {
 public:
  // Where little is known yet, `prior` counts, which must outlive this; null: a draft.
  explicit MatchChances(const MatchChances* prior = nullptr) : prior_(prior) {}

  // After a run of `length` tokens, 0 where the last one was another, the same token has come again, or another one.
  void note(int length, bool came);
  // The chance that it comes, between 0 and 1.
  double of(int length) const { return of_class(class_of(length)); }

 private:
  static constexpr size_t kClasses = 8;  // lengths 0, 1, 2, 3 to 4, 5 to 8, 9 to 16, ...
  struct Seen {
    double came = 0;
    double all = 0;
  };

  static size_t class_of(int length);
  double of_class(size_t index) const;

  const MatchChances* prior_;
  std::array<Seen, kClasses> seen_{};
};

}  // namespace turbomind
