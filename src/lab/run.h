#pragma once

// Runs claims and keeps what was found.

#include <functional>
#include <optional>
#include <vector>

#include "lab/claim.h"

namespace rootdk::lab {

struct Result {
  Claim claim;
  Finding finding;
  double seconds = 0;
};

// Measures one claim. An experiment that throws does not hold, and its message is the note.
Result measure(const Claim& claim, const Bench& bench);

// The implementation that answers a plain float32 call here.
std::string kernel_in_use();

// The claim with this number; throws rootdk::Error naming those that exist.
const Claim& claim_by_id(int id);

}  // namespace rootdk::lab
