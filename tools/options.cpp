#include "tools/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>

#include "core/check.h"

namespace rootdk::tools {
namespace {

// CLI11 would take a number beyond 64 bits as the largest.
std::string refuse_seed(const std::string& entry) {
  if (entry.find('-') != std::string::npos) return entry + " must not be negative";
  std::uint64_t seed = 0;
  const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), seed);
  return error == std::errc::result_out_of_range ? entry + " is over 18446744073709551615, the largest seed" : "";
}

template <class Number>
Number parse_number(const std::string& option, const std::string& entry) {
  Number number{};
  const char* end = entry.data() + entry.size();
  const auto [rest, error] = std::from_chars(entry.data(), end, number);
  if (entry.empty()) throw CLI::ValidationError(option, "a number is missing");
  if (error != std::errc() || rest != end) throw CLI::ValidationError(option, "'" + entry + "' is no number for it");
  return number;
}

}  // namespace

void ExecutionOptions::add_to(CLI::App& verb) {
  verb.add_option("--target", target, "Force an implementation by name (see rootdk explain)")->type_name("NAME");
  verb.add_option("--device", device, "Where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}).description(""))
      ->type_name("cpu|cuda")
      ->capture_default_str();
  add_threads_option(verb, threads, "Threads on the CPU (default: ROOTDK_THREADS, or all)");
}

Execution ExecutionOptions::execution() const {
  return {.target = target, .cpu = {.executor = threads > 0 ? &shared_executor(threads) : nullptr}};
}

template <class Number>
CLI::Option* add_numbers_option(CLI::App& verb, const std::string& name, std::vector<Number>& numbers,
                                const std::string& help) {
  // Not CLI11's own lists: they skip entries that are missing.
  const auto read = [name, &numbers](const std::string& text) {
    numbers.clear();
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      numbers.push_back(parse_number<Number>(name, text.substr(begin, end - begin)));
      begin = end + 1;
    }
  };
  return verb.add_option_function<std::string>(name, read, help)->type_name("1,2,3");
}

template CLI::Option* add_numbers_option(CLI::App&, const std::string&, std::vector<std::int32_t>&, const std::string&);
template CLI::Option* add_numbers_option(CLI::App&, const std::string&, std::vector<std::int64_t>&, const std::string&);

void add_threads_option(CLI::App& verb, int& threads, const std::string& help) {
  verb.add_option("--threads", threads, help)->check(CLI::Range(1, 4096).description(""))->type_name("N");
}

void add_seed_option(CLI::App& verb, std::uint64_t& seed, const std::string& help) {
  verb.add_option("--seed", seed, help)->check(refuse_seed)->capture_default_str()->type_name("N");
}

void add_dtype_option(CLI::App& verb, std::string& dtype, const std::string& help) {
  verb.add_option("--dtype", dtype, help)
      ->check(CLI::IsMember({"f32", "bf16", "f16", "f64"}).description(""))
      ->type_name("f32|bf16|f16|f64");
}

std::optional<DType> parse_dtype(const std::string& name) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    if (name == name_of(dtype)) return dtype;
  }
  require(name.empty(), "element type '", name, "' is none of f32, bf16, f16, f64");
  return std::nullopt;
}

CLI::Option* add_cache_option(CLI::App& verb, std::optional<DType>& type) {
  static const std::map<std::string, DType> kTypes = {
      {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"int8", DType::i8}, {"e4m3", DType::f8e4m3}};
  return verb
      .add_option_function<std::string>(
          "--cache", [&type](const std::string& name) { type = kTypes.at(name); },
          "Type of the keys and values that are kept (default: that of the checkpoint's weights)")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "int8", "e4m3"}).description(""))
      ->type_name("f32|bf16|f16|int8|e4m3");
}

CLI::Option* add_weights_option(CLI::App& verb, std::optional<WeightFormat>& weights, const std::string& help) {
  return verb
      .add_option_function<std::string>(
          "--weights",
          [&weights](const std::string& name) { weights = name == "int8" ? WeightFormat::i8 : WeightFormat::i4; }, help)
      ->check(CLI::IsMember({"int8", "int4"}).description(""))
      ->type_name("int8|int4");
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
