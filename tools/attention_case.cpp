#include "tools/attention_case.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "models/safetensors.h"

namespace rootdk::tools {
namespace {

using Json = nlohmann::json;

// The fields of "case". Those that are required always, and those that are only together with a tensor.
constexpr std::array kRequiredFields = {"score",  "scale",       "temperature", "softcap",
                                        "causal", "window_left", "window_right"};
constexpr std::array kOptionalFields = {"dropout", "seed", "block_q", "block_kv", "relative_zero"};

template <std::size_t N>
bool is_one_of(const std::array<const char*, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// The scalar fields of a case. Messages name the file, the field and its value.
class CaseFields {
 public:
  CaseFields(std::string file, const std::map<std::string, std::string>& metadata) : file_(std::move(file)) {
    const auto found = metadata.find("case");
    require(found != metadata.end(), file_, ": the metadata has no \"case\"");
    fields_ = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
    require(fields_.is_object(), file_, ": the metadata \"case\" is not a JSON object: ", found->second.substr(0, 80));
  }

  AttentionParams params(bool with_block_mask, bool with_relative_table) const {
    AttentionParams p;
    p.score = score();
    p.logits.scale = scale();
    p.logits.temperature = number("temperature");
    p.logits.softcap = number("softcap");
    p.causal = get("causal", &Json::is_boolean, "true or false").get<bool>();
    p.window_left = integer("window_left");
    p.window_right = integer("window_right");
    if (fields_.contains("dropout")) p.dropout = number("dropout");
    if (fields_.contains("seed") || p.dropout > 0) {
      p.seed = get("seed", &Json::is_number_unsigned, "a natural number").get<std::uint64_t>();
    }
    if (with_block_mask) {
      p.block_q = integer("block_q");
      p.block_kv = integer("block_kv");
    }
    if (with_relative_table) p.logits.relative_zero = integer("relative_zero");
    return p;
  }

  std::vector<std::string> unknown_fields() const {
    std::vector<std::string> unknown;
    for (const auto& [name, value] : fields_.items()) {
      if (!is_one_of(kRequiredFields, name) && !is_one_of(kOptionalFields, name)) {
        unknown.push_back(file_ + ": the field \"" + name + "\" of \"case\" is unknown and ignored");
      }
    }
    return unknown;
  }

 private:
  template <class Predicate>
  const Json& get(const char* name, Predicate is, std::string_view expected) const {
    const auto found = fields_.find(name);
    require(found != fields_.end(), file_, ": \"case\" has no field \"", name, "\"");
    require(((*found).*is)(), file_, ": the field \"", name, "\" of \"case\" is ", found->dump().substr(0, 80),
            ", expected ", expected);
    return *found;
  }

  double number(const char* name) const { return get(name, &Json::is_number, "a number").get<double>(); }

  std::int64_t integer(const char* name) const {
    const Json& value = get(name, &Json::is_number_integer, "an integer");
    require(!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
            file_, ": the field \"", name, "\" of \"case\" is ", value.dump(), ", over 63 bits");
    return value.get<std::int64_t>();
  }

  Score score() const {
    const auto name = get("score", &Json::is_string, "a string").get<std::string>();
    if (name == "dot") return Score::dot;
    if (name == "cosine") return Score::cosine;
    if (name == "additive") return Score::additive;
    fail(file_, ": the field \"score\" of \"case\" is \"", name, "\", expected dot, cosine or additive");
  }

  Scale scale() const {
    if (const auto found = fields_.find("scale"); found != fields_.end() && found->is_string()) {
      const auto name = found->get<std::string>();
      if (name == "inverse_sqrt_head_dim") return Scale::inverse_sqrt_head_dim();
      if (name == "inverse_head_dim") return Scale::inverse_head_dim();
      if (name == "none") return Scale::none();
      fail(file_, ": the field \"scale\" of \"case\" is \"", name,
           "\", expected a number, inverse_sqrt_head_dim, inverse_head_dim or none");
    }
    return number("scale");
  }

  std::string file_;
  Json fields_;
};

// Copies a tensor of the file in the type the library wants it in.
class CaseTensors {
 public:
  CaseTensors(std::string file, const SafetensorsFile& tensors) : file_(std::move(file)), tensors_(tensors) {}

  Tensor floating(const char* name, std::optional<DType> dtype) const {
    const ConstTensorView view = required(name);
    require(is_floating(view.dtype), file_, ": tensor '", name, "' is ", describe(view), ", expected a floating type");
    return convert(view, dtype.value_or(view.dtype));
  }

  Tensor boolean(const char* name) const {
    const ConstTensorView view = required(name);
    require(view.dtype == DType::boolean, file_, ": tensor '", name, "' is ", describe(view), ", expected bool");
    Tensor result(DType::boolean, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
    // Any byte but 0 counts as true; a bool of C++ must be 0 or 1.
    std::transform(view.as<std::uint8_t>(), view.as<std::uint8_t>() + view.elements(), result.view().as<std::uint8_t>(),
                   [](std::uint8_t byte) { return byte != 0; });
    return result;
  }

  // Lengths and starts: i32, or i64 whose values fit.
  Tensor integers(const char* name) const {
    const ConstTensorView view = required(name);
    require(view.dtype == DType::i32 || view.dtype == DType::i64, file_, ": tensor '", name, "' is ", describe(view),
            ", expected i32");
    Tensor result(DType::i32, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
    for (std::int64_t i = 0; i < view.elements(); ++i) {
      const std::int64_t value = view.dtype == DType::i32 ? view.as<std::int32_t>()[i] : view.as<std::int64_t>()[i];
      require(value == static_cast<std::int32_t>(value), file_, ": tensor '", name, "' holds ", value,
              ", which 32 bits do not");
      result.view().as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
    }
    return result;
  }

 private:
  ConstTensorView required(const char* name) const {
    require(tensors_.contains(name), file_, ": there is no tensor '", name, "'");
    return tensors_.tensor(name);
  }

  std::string file_;
  const SafetensorsFile& tensors_;
};

}  // namespace

ConstTensorView AttentionCase::view(std::string_view name, Memory& memory) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? ConstTensorView() : memory.place(found->second.view());
}

AttentionParams AttentionCase::params(Memory& memory) const {
  AttentionParams p = scalars;
  p.kv_lengths = view("kv_lengths", memory);
  p.mask = view("mask", memory);
  p.block_mask = view("block_mask", memory);
  p.q_starts = view("q_starts", memory);
  p.kv_starts = view("kv_starts", memory);
  p.bias = view("bias", memory);
  p.logits.relative_table = view("relative_table", memory);
  p.logits.alibi_slopes = view("alibi_slopes", memory);
  p.logits.sinks = view("sinks", memory);
  p.additive_v = view("additive_v", memory);
  return p;
}

AttentionCase read_attention_case(const std::filesystem::path& path, std::optional<DType> dtype) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const CaseTensors read(path.string(), file);
  AttentionCase result;
  result.tensors["q"] = read.floating("q", dtype);
  for (const char* name : {"k", "v"}) result.tensors[name] = read.floating(name, result.dtype());
  if (file.contains("grad_out")) result.tensors["grad_out"] = read.floating("grad_out", result.dtype());
  for (const char* name : {"bias", "alibi_slopes", "relative_table", "sinks", "additive_v"}) {
    if (file.contains(name)) result.tensors[name] = read.floating(name, result.small_dtype());
  }
  for (const char* name : {"mask", "block_mask"}) {
    if (file.contains(name)) result.tensors[name] = read.boolean(name);
  }
  for (const char* name : {"kv_lengths", "q_starts", "kv_starts"}) {
    if (file.contains(name)) result.tensors[name] = read.integers(name);
  }
  const CaseFields fields(path.string(), file.metadata());
  result.scalars = fields.params(file.contains("block_mask"), file.contains("relative_table"));
  result.warnings = fields.unknown_fields();
  return result;
}

}  // namespace rootdk::tools
