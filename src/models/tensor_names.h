#pragma once

#include "models/architectures.h"

namespace rootdk {

extern const TensorNames kGpt2Names, kBertNames, kLlamaNames, kGemma2Names, kGptOssNames, kGptNeoxNames, kBloomNames,
    kT5Names, kMarianNames, kOwnNames;

}  // namespace rootdk
