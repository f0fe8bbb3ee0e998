#pragma once

// Options that several verbs share: one spelling, one help text, one meaning.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/linear_call.h"
#include "rootdk/attention.h"

namespace rootdk::tools {

class Command;
class Option;

struct ExecutionOptions {
  std::string target;
  std::string device = "cpu";
  int threads = 0;

  void add_to(Command& verb);
  DeviceKind device_kind() const { return device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu; }
  // Refers to this object, which must outlive it.
  Execution execution() const;
};

// Whole numbers with commas between them, int32 or int64. An entry that is missing ("1,,2") is refused.
template <class Number>
Option* add_numbers_option(Command& verb, const std::string& name, std::vector<Number>& numbers,
                           const std::string& help);

// --threads N: 1 to 4096.
void add_threads_option(Command& verb, int& threads,
                        const std::string& help = "Threads (default: ROOTDK_THREADS, or all)");

// --seed N: numbers below 0 are refused, which would be read as very large ones.
void add_seed_option(Command& verb, std::uint64_t& seed, const std::string& help);

// --dtype f32|bf16|f16|f64; empty: not given.
void add_dtype_option(Command& verb, std::string& dtype, const std::string& help);
std::optional<DType> parse_dtype(const std::string& name);

// --cache f32|bf16|f16|int8|e4m3: the type of the keys and values that a model keeps; not given: that of its weights.
Option* add_cache_option(Command& verb, std::optional<DType>& type);

// --weights int8|int4: what a model's matrices are made into; not given: they stay as they are stored.
Option* add_weights_option(Command& verb, std::optional<WeightFormat>& weights, const std::string& help);
Option* add_activations_option(Command& verb, DType& type);
// The same for generation, where the processor decides unless the option is given.
Option* add_activations_option(Command& verb, std::optional<DType>& type);

// Where a target is forced that no implementation is called: says so, with the names there are. `explanation` is of the
// call that it was forced for.
void require_known_target(const Explanation& explanation, const std::string& target);

}  // namespace rootdk::tools
