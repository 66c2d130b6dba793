// Features a ModelSpec can name and the decoder cannot run yet.
#pragma once

#include "model/spec/model_spec.h"

namespace turbomind {

// Throws Error naming every such feature of `spec`; support for one deletes its line.
void refuse_what_the_decoder_lacks(const ModelSpec& spec);

}  // namespace turbomind
