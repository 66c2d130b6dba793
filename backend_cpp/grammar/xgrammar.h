// xgrammar's readers of formats, reached through TVM-FFI out of the two packages' wheels.
#pragma once

#include <functional>
#include <string>

#include "engine/grammar/program.h"
#include "engine/grammar/wire.h"

namespace turbomind {

// A format that was read.
struct Format {
  GrammarProgram program;
  SpecialTokens marks = {};  // special tokens that stand for their texts in it
};

// Reads the JSON text of a format as lmdeploy/grammars translates it. May take long. Throws Error(kInvalidArgument).
using FormatReader = std::function<Format(const std::string& format)>;

// Loads xgrammar. Throws Error. `vocabulary` outlives what is returned.
FormatReader load_xgrammar(const wire::Vocabulary& vocabulary);

}  // namespace turbomind
