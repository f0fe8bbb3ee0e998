#pragma once

#include "models/architectures.h"

namespace rootdk {

extern const TensorNames kGpt2Names, kBertNames, kLlamaNames, kGemma2Names, kGptOssNames, kGptNeoxNames, kBloomNames,
    kT5Names, kMarianNames, kOwnNames;
// more_tensor_names.cpp
extern const TensorNames kPhi3Names, kGemma3Names, kOlmo2Names, kMixtralNames, kRobertaNames, kDistilBertNames,
    kAlbertNames, kModernBertNames;

}  // namespace rootdk
