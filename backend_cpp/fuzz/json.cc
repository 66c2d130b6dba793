// The JSON reader: refuses, or reads what its own text means again.
#include "base/json.h"

#include "fuzz/fuzz.h"

namespace turbomind {

FUZZ_TARGET(json) {
  fuzz::is_accepted([&] {
    const std::string text = Json::parse(input).dump();
    PROMISE(Json::parse(text).dump() == text);
  });
}

}  // namespace turbomind
