#include "tools/options.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "tools/arguments.h"

namespace rootdk::tools {
namespace {

// CLI11 would take a number beyond 64 bits as the largest.
std::string refuse_seed(const std::string& entry) {
  if (entry.find('-') != std::string::npos) return entry + " must not be negative";
  std::uint64_t seed = 0;
  const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), seed);
  return error == std::errc::result_out_of_range ? entry + " is over 18446744073709551615, the largest seed" : "";
}

// What is wrong with the numbers; "": nothing.
template <class Number>
std::string parse_numbers(const std::string& text, std::vector<Number>& numbers) {
  numbers.clear();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, comma - begin);
    if (entry.empty()) return "a number is missing";
    Number number{};
    const char* end = entry.data() + entry.size();
    const auto [rest, error] = std::from_chars(entry.data(), end, number);
    if (error != std::errc() || rest != end) return "'" + entry + "' is no number for it";
    numbers.push_back(number);
    begin = comma + 1;
  }
  return "";
}

}  // namespace

void ExecutionOptions::add_to(Command& verb) {
  verb.add_option("--target", target, "Force an implementation by name (see rootdk explain)")->type_name("NAME");
  verb.add_option("--device", device, "Where to compute")->one_of({"cpu", "cuda"})->show_default();
  add_threads_option(verb, threads, "Threads on the CPU (default: ROOTDK_THREADS, or all)");
}

Execution ExecutionOptions::execution() const {
  return {.target = target, .cpu = {.executor = threads > 0 ? &shared_executor(threads) : nullptr}};
}

template <class Number>
Option* add_numbers_option(Command& verb, const std::string& name, std::vector<Number>& numbers,
                           const std::string& help) {
  // Not CLI11's own lists: they skip entries that are missing.
  const auto read = [&numbers](const std::string& text) { return parse_numbers(text, numbers); };
  return verb.add_text(name, read, help)->type_name("1,2,3");
}

template Option* add_numbers_option(Command&, const std::string&, std::vector<std::int32_t>&, const std::string&);
template Option* add_numbers_option(Command&, const std::string&, std::vector<std::int64_t>&, const std::string&);

void add_threads_option(Command& verb, int& threads, const std::string& help) {
  verb.add_option("--threads", threads, help)->between(1, 4096)->type_name("N");
}

void add_seed_option(Command& verb, std::uint64_t& seed, const std::string& help) {
  verb.add_option("--seed", seed, help)->check(refuse_seed)->show_default()->type_name("N");
}

void add_dtype_option(Command& verb, std::string& dtype, const std::string& help) {
  verb.add_option("--dtype", dtype, help)->one_of({"f32", "bf16", "f16", "f64"});
}

std::optional<DType> parse_dtype(const std::string& name) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    if (name == name_of(dtype)) return dtype;
  }
  require(name.empty(), "element type '", name, "' is none of f32, bf16, f16, f64");
  return std::nullopt;
}

Option* add_cache_option(Command& verb, std::optional<DType>& type) {
  return verb.add_choice<std::optional<DType>>(
      "--cache", type,
      {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"int8", DType::i8}, {"e4m3", DType::f8e4m3}},
      "Type of the keys and values that are kept (default: that of the checkpoint's weights)");
}

Option* add_weights_option(Command& verb, std::optional<WeightFormat>& weights, const std::string& help) {
  return verb.add_choice<std::optional<WeightFormat>>("--weights", weights,
                                                      {{"int8", WeightFormat::i8}, {"int4", WeightFormat::i4}}, help);
}

Option* add_activations_option(Command& verb, DType& type) {
  return verb.add_choice<DType>("--activations", type, {{"f32", DType::f32}, {"bf16", DType::bf16}},
                                "What bf16 weights multiply (default: f32); bf16 is faster for many tokens at once");
}

Option* add_activations_option(Command& verb, std::optional<DType>& type) {
  return verb.add_choice<std::optional<DType>>(
      "--activations", type, {{"f32", DType::f32}, {"bf16", DType::bf16}},
      "What bf16 weights multiply (default: bf16 where the processor has products of bf16, else f32)");
}

void require_known_target(const Explanation& explanation, const std::string& target) {
  if (target.empty() || explanation.candidates.empty()) return;
  std::string names;
  for (const auto& candidate : explanation.candidates) {
    if (candidate.name == target) return;
    names += (names.empty() ? "" : ", ") + candidate.name;
  }
  fail("--target '", target, "' is unknown; here there are: ", names);
}

}  // namespace rootdk::tools
