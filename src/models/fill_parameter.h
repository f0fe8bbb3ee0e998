#pragma once

#include "models/checkpoint.h"

namespace rootdk {

// Gives a parameter its numbers: a matrix that lies row after row in the file is read where it is, another one is
// copied into that order in its own type, and vectors become f32. options.weights asks for a matrix of another format.
void fill_parameter(Node& parameter, const Binding& binding, const std::shared_ptr<const Checkpoint>& checkpoint,
                    const LoadOptions& options);

}  // namespace rootdk
