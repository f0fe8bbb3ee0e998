#include "models/text_budget.h"

#include <ctime>

#include "core/check.h"

namespace rootdk {
namespace {

// Tokenizers in use take a microsecond a byte at most, and make at most 11 bytes of one (NFKD of U+FDFA).
constexpr double kSeconds = 2.0, kSecondsPerByte = 1e-5;
constexpr std::size_t kBytes = std::size_t{1} << 20, kBytesPerByte = 64;

thread_local const TextBudget* in_force = nullptr;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TextBudget::TextBudget(std::size_t text_bytes)
    : text_bytes_(text_bytes),
      seconds_(kSeconds + kSecondsPerByte * static_cast<double>(text_bytes)),
      begun_(thread_seconds()),
      largest_(kBytes + kBytesPerByte * text_bytes) {
  if (!in_force) in_force = this;
}

TextBudget::~TextBudget() {
  if (in_force == this) in_force = nullptr;
}

bool TextBudget::time_is_up() { return in_force && thread_seconds() - in_force->begun_ > in_force->seconds_; }

void TextBudget::require_time() {
  if (!time_is_up()) return;
  fail("tokenizer: a text of ", in_force->text_bytes_, " bytes takes longer than the bound of ", in_force->seconds_,
       " seconds of processor time (", kSeconds,
       " and 10 microseconds a byte): the steps of this tokenizer are too slow");
}

void TextBudget::require_size(std::size_t bytes) {
  if (!in_force || bytes <= in_force->largest_) return;
  fail("tokenizer: a text of ", in_force->text_bytes_, " bytes grows beyond the bound of ", in_force->largest_,
       " bytes (1 MiB and 64 times its size) in the steps of this tokenizer");
}

}  // namespace rootdk
