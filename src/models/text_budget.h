#pragma once

// How long a text may take and how large it may become inside a tokenizer, whoever wrote the tokenizer's file. Time is
// that of the processor in this thread, so that other work on the machine counts for nothing.

#include <cstddef>

namespace rootdk {

// In force from its construction to its destruction, for the thread. One inside another changes nothing: the outermost
// counts, so that a text has one budget however many steps it goes through.
class TextBudget {
 public:
  explicit TextBudget(std::size_t text_bytes);
  TextBudget(const TextBudget&) = delete;
  TextBudget& operator=(const TextBudget&) = delete;
  ~TextBudget();

  // Throw rootdk::Error that names the bound. Without a budget in force there is none.
  static void require_time();
  static void require_size(std::size_t bytes);
  static bool time_is_up();

 private:
  std::size_t text_bytes_;
  double seconds_;       // in all
  double begun_;         // on the thread's clock
  std::size_t largest_;  // bytes
};

}  // namespace rootdk
