#include "models/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>

#include "core/check.h"
#include "models/json.h"
#include "models/mapped_file.h"

namespace rootdk {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own implementation
constexpr std::size_t kLongestReason = 300;             // of a JSON error, which quotes what it read
constexpr int kMaxJsonDepth = 4;                        // header > tensor > shape > number

struct TypeInfo {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;  // what a view of it has; none: refused on access
};

constexpr TypeInfo kTypes[] = {
    {"F32", 4, DType::f32},       {"F16", 2, DType::f16},   {"BF16", 2, DType::bf16},     {"F64", 8, DType::f64},
    {"I32", 4, DType::i32},       {"I64", 8, DType::i64},   {"BOOL", 1, DType::boolean},  {"I8", 1, DType::i8},
    {"U8", 1, DType::i32},        {"I16", 2, std::nullopt}, {"U16", 2, std::nullopt},     {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},     {"C64", 8, std::nullopt}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt},
};

const TypeInfo* find_type(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &TypeInfo::name);
  return found == std::end(kTypes) ? nullptr : &*found;
}

struct Entry {
  std::string name;
  std::string type_name;
  const TypeInfo* type = nullptr;  // null: a type this reader does not know
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // within the data
};

// Error messages quote what a file holds: cut long text, and let no control character reach a terminal.
std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string result = "'";
  for (char c : text.substr(0, kLongest)) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result + (text.size() > kLongest ? "...'" : "'");
}

std::string sizes_text(std::span<const std::int64_t> sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes) text.append(text.size() > 1 ? "," : "").append(std::to_string(size));
  return text + "]";
}

std::string shown_json(const Json& value) { return shown(value.dump()); }

// Reads the header of one file. All messages begin with the file's name.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view file) : file_(file) {}

  struct Header {
    std::vector<Entry> entries;  // in the order of their data
    std::map<std::string, std::string> metadata;
    std::span<const std::byte> data;
  };

  Header parse(std::span<const std::byte> bytes) const {
    std::uint64_t length = 0;
    check(bytes.size() >= kLengthBytes, "the file has ", bytes.size(), " bytes, not even the 8 of the header length");
    std::memcpy(&length, bytes.data(), kLengthBytes);
    check(length <= kMaxHeaderBytes, "header length ", length, " is over the limit ", kMaxHeaderBytes);
    check(length <= bytes.size() - kLengthBytes, "header length ", length, " runs past the end of the file of ",
          bytes.size(), " bytes");
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
    Header header{.entries = {}, .metadata = {}, .data = bytes.subspan(kLengthBytes + length)};
    const Json json = parse_json(text);
    for (const auto& [name, value] : json.items()) {
      if (name == "__metadata__") {
        header.metadata = parse_metadata(value);
      } else {
        header.entries.push_back(parse_entry(name, value, header.data.size()));
      }
    }
    check_coverage(header);
    return header;
  }

 private:
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    require(condition, "safetensors: ", file_, ": ", parts...);
  }

  Json parse_json(std::string_view text) const {
    check(text.starts_with('{'), "the header does not begin with '{'");
    using Kind = Json::Problem::Kind;
    std::optional<Json::Problem> problem;
    Json header = Json::parse(text, {.depth = kMaxJsonDepth, .unique_names = true}, problem);
    if (!problem) return header;
    check(problem->kind != Kind::depth, "the header is nested deeper than ", kMaxJsonDepth, " levels");
    check(problem->kind != Kind::repeated_name, "the header names ", shown(problem->detail), " twice");
    fail("safetensors: ", file_,
         ": the header is not valid JSON: ", std::string_view(problem->detail).substr(0, kLongestReason));
  }

  std::map<std::string, std::string> parse_metadata(const Json& value) const {
    if (!value.is_object()) check(false, "__metadata__ is ", shown_json(value), ", not an object");
    std::map<std::string, std::string> metadata;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        check(false, "__metadata__ ", shown(key), " is ", shown_json(text), ", not a string");
      }
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

  Entry parse_entry(const std::string& name, const Json& value, std::size_t data_bytes) const {
    const std::string tensor = "tensor " + shown(name);
    if (!value.is_object()) check(false, tensor, " is ", shown_json(value), ", not an object");
    for (const auto& [key, unused] : value.items()) {
      check(key == "dtype" || key == "shape" || key == "data_offsets", tensor, " has the unknown field ", shown(key));
    }
    Entry entry{.name = name, .type_name = {}, .shape = {}};
    entry.type_name = field(tensor, value, "dtype", &Json::is_string, "a string").get<std::string>();
    entry.type = find_type(entry.type_name);
    for (std::uint64_t size : naturals(tensor, value, "shape")) {
      check(size <= std::numeric_limits<std::int64_t>::max(), tensor, " has the size ", size, ", over 63 bits");
      entry.shape.push_back(static_cast<std::int64_t>(size));
    }
    const auto offsets = naturals(tensor, value, "data_offsets");
    check(offsets.size() == 2, tensor, " has ", offsets.size(), " data_offsets, expected 2");
    entry.begin = offsets[0];
    entry.end = offsets[1];
    check(entry.begin <= entry.end, tensor, " begins at ", entry.begin, ", after its end ", entry.end);
    check(entry.end <= data_bytes, tensor, " ends at ", entry.end, ", past the ", data_bytes, " bytes of data");
    if (entry.type) check_size(tensor, entry);
    return entry;
  }

  void check_size(const std::string& tensor, const Entry& entry) const {
    std::uint64_t expected = entry.type->bytes;
    for (std::int64_t size : entry.shape) {
      std::uint64_t product = 0;
      check(!__builtin_mul_overflow(expected, static_cast<std::uint64_t>(size), &product), tensor,
            " has sizes that multiply to more than 64 bits hold");
      expected = product;
    }
    if (entry.end - entry.begin == expected) return;
    check(false, tensor, " has ", entry.end - entry.begin, " bytes of data, but ", entry.type_name, " ",
          sizes_text(entry.shape), " takes ", expected);
  }

  template <class Predicate>
  const Json& field(const std::string& tensor, const Json& value, const char* key, Predicate is,
                    std::string_view what) const {
    const Json* found = value.find(key);
    check(found != nullptr, tensor, " has no ", key);
    if (!(found->*is)()) check(false, tensor, " has the ", key, " ", shown_json(*found), ", not ", what);
    return *found;
  }

  // A list of integers that are not negative; 1.5, -1 and numbers over 64 bits are refused.
  std::vector<std::uint64_t> naturals(const std::string& tensor, const Json& value, const char* key) const {
    std::vector<std::uint64_t> result;
    for (const Json& number : field(tensor, value, key, &Json::is_array, "a list")) {
      if (!number.is_number_unsigned()) {
        check(false, tensor, " has ", shown_json(number), " in ", key, ", not a natural number");
      }
      result.push_back(number.get<std::uint64_t>());
    }
    return result;
  }

  // Tensors tile the data: no byte belongs to two of them, and none to nobody.
  void check_coverage(Header& header) const {
    std::ranges::stable_sort(header.entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
    std::uint64_t covered = 0;
    std::string_view last = "the beginning";
    for (const Entry& entry : header.entries) {
      check(entry.begin >= covered, "tensor ", shown(entry.name), " begins at ", entry.begin, ", inside ", shown(last),
            " which ends at ", covered);
      check(entry.begin == covered, "the bytes [", covered, ", ", entry.begin, ") before tensor ", shown(entry.name),
            " belong to no tensor");
      covered = entry.end;
      last = entry.name;
    }
    check(covered == header.data.size(), "the tensors end at ", covered, " but the data has ", header.data.size(),
          " bytes");
  }

  std::string_view file_;
};

}  // namespace

struct SafetensorsFile::Content {
  std::string file;
  std::optional<MappedFile> mapping;
  HeaderParser::Header header;
  std::vector<std::string> names;
  std::map<std::string, std::size_t, std::less<>> index;  // name -> place in header.entries

  mutable std::mutex copies_mutex;
  mutable std::map<std::size_t, Tensor> copies;  // by place in header.entries

  const Entry& entry(std::string_view name) const { return header.entries[place(name)]; }

  std::size_t place(std::string_view name) const {
    const auto found = index.find(name);
    require(found != index.end(), "safetensors: ", file, ": there is no tensor ", shown(name));
    return found->second;
  }

  ConstTensorView copy(std::size_t place, DType dtype, std::span<const std::int64_t> shape) const {
    const std::scoped_lock lock(copies_mutex);
    Tensor& tensor = copies[place];
    if (!tensor.defined()) {
      Tensor made(dtype, shape);
      const Entry& entry = header.entries[place];
      const auto source = header.data.subspan(entry.begin, entry.end - entry.begin);
      if (entry.type_name == "U8") {
        std::ranges::transform(source, made.view().as<std::int32_t>(), std::to_integer<std::int32_t>);
      } else if (!source.empty()) {
        std::memcpy(made.view().data, source.data(), source.size());
      }
      tensor = std::move(made);
    }
    return std::as_const(tensor).view();
  }
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Content> content) : content_(std::move(content)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  return reading_file([&] {
    MappedFile mapping(path);
    SafetensorsFile result = parse(mapping.bytes(), path.string());
    result.content_->mapping = std::move(mapping);
    return result;
  });
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  auto content = std::make_unique<Content>();
  content->file = std::move(name);
  content->header = HeaderParser(content->file).parse(bytes);
  for (const Entry& entry : content->header.entries) {
    content->index.emplace(entry.name, content->names.size());
    content->names.push_back(entry.name);
  }
  return SafetensorsFile(std::move(content));
}

const std::vector<std::string>& SafetensorsFile::names() const { return content_->names; }

bool SafetensorsFile::contains(std::string_view name) const { return content_->index.contains(name); }

ConstTensorView SafetensorsFile::tensor(std::string_view name) const {
  const std::size_t place = content_->place(name);
  const Entry& entry = content_->header.entries[place];
  const std::string& file = content_->file;
  require(entry.type && entry.type->dtype, "safetensors: ", file, ": tensor ", shown(name), " has the type ",
          shown(entry.type_name), ", which is not supported");
  require(entry.shape.size() <= kMaxRank, "safetensors: ", file, ": tensor ", shown(name), " has rank ",
          entry.shape.size(), ", over the maximum ", kMaxRank);
  // A view of rank 0 stands for "no tensor".
  const std::vector<std::int64_t> shape = entry.shape.empty() ? std::vector<std::int64_t>{1} : entry.shape;
  const std::byte* data = content_->header.data.data() + entry.begin;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % entry.type->bytes == 0;
  const bool same_bits = size_of(*entry.type->dtype) == entry.type->bytes;
  if (!aligned || !same_bits) return content_->copy(place, *entry.type->dtype, shape);
  return ConstTensorView(data, *entry.type->dtype, shape);
}

void SafetensorsFile::release(std::string_view name) const {
  if (!content_->mapping) return;
  const Entry& entry = content_->entry(name);
  content_->mapping->release(content_->header.data.subspan(entry.begin, entry.end - entry.begin));
}

std::string_view SafetensorsFile::type_name(std::string_view name) const { return content_->entry(name).type_name; }

std::span<const std::int64_t> SafetensorsFile::shape(std::string_view name) const {
  return content_->entry(name).shape;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return content_->header.metadata; }

}  // namespace rootdk
