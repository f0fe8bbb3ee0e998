#pragma once

#include "models/architectures.h"

namespace rootdk {

extern const TensorNames kLlamaNames, kGemma2Names, kGemma3Names, kOlmo2Names, kPhi3Names, kMixtralNames, kGptOssNames,
    kGpt2Names, kGptNeoxNames, kBloomNames, kBertNames, kRobertaNames, kDistilBertNames, kAlbertNames, kModernBertNames,
    kT5Names, kMarianNames, kOwnNames;

}  // namespace rootdk
