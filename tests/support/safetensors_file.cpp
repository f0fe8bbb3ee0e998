#include "support/safetensors_file.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/check.h"

namespace rootdk::test {
namespace {

// Walks the JSON of a header: objects, strings, numbers and lists of numbers.
class Cursor {
 public:
  explicit Cursor(const std::string& text) : text_(text) {}

  bool take(char c) {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) { require(take(c), "safetensors header: expected '", c, "' at ", at_); }
  std::string string() {
    expect('"');
    std::string result;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') ++at_;
      result += text_.at(at_++);
    }
    expect('"');
    return result;
  }
  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> result;
    expect('[');
    while (!take(']')) {
      std::size_t used = 0;
      result.push_back(std::stoll(text_.substr(at_, 24), &used));
      at_ += used;
      take(',');
    }
    return result;
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

DType dtype_named(const std::string& name) {
  static const std::map<std::string, DType> types = {
      {"F32", DType::f32}, {"BF16", DType::bf16}, {"F16", DType::f16},     {"F64", DType::f64},
      {"I32", DType::i32}, {"I64", DType::i64},   {"BOOL", DType::boolean}};
  const auto found = types.find(name);
  require(found != types.end(), "safetensors: unknown type ", name);
  return found->second;
}

Tensor read_tensor(Cursor& cursor, const std::string& data) {
  std::string dtype;
  std::vector<std::int64_t> shape, offsets;
  cursor.expect('{');
  while (!cursor.take('}')) {
    const std::string key = cursor.string();
    cursor.expect(':');
    if (key == "dtype") {
      dtype = cursor.string();
    } else {
      (key == "shape" ? shape : offsets) = cursor.numbers();
    }
    cursor.take(',');
  }
  Tensor tensor(dtype_named(dtype), shape);
  require(offsets.size() == 2 && static_cast<std::size_t>(offsets[1]) <= data.size() &&
              static_cast<std::size_t>(offsets[1] - offsets[0]) == tensor.bytes(),
          "safetensors: the offsets of a tensor do not fit");
  std::memcpy(tensor.view().data, data.data() + offsets[0], tensor.bytes());
  return tensor;
}

}  // namespace

SafetensorsFile read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "cannot open ", path);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t header_size = 0;
  require(bytes.size() >= 8, path, " is too short");
  std::memcpy(&header_size, bytes.data(), 8);
  require(header_size <= bytes.size() - 8, path, ": the header is longer than the file");
  const std::string header = bytes.substr(8, header_size), data = bytes.substr(8 + header_size);

  SafetensorsFile result;
  Cursor cursor(header);
  cursor.expect('{');
  while (!cursor.take('}')) {
    const std::string name = cursor.string();
    cursor.expect(':');
    if (name == "__metadata__") {
      cursor.expect('{');
      while (!cursor.take('}')) {
        const std::string key = cursor.string();
        cursor.expect(':');
        result.metadata[key] = cursor.string();
        cursor.take(',');
      }
    } else {
      result.tensors.emplace(name, read_tensor(cursor, data));
    }
    cursor.take(',');
  }
  return result;
}

std::string json_field(const std::string& object, const std::string& key) {
  const std::string quoted = '"' + key + '"';
  std::size_t begin = object.find(quoted);
  if (begin == std::string::npos) return {};
  begin = object.find_first_not_of(": \"", begin + quoted.size());
  return object.substr(begin, object.find_first_of(",}\"", begin) - begin);
}

}  // namespace rootdk::test
