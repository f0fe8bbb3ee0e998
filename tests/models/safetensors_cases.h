#pragma once

// Small safetensors files, good and broken. The tests check what is said about each; the fuzzer starts from them.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace rootdk::test {

// A file with the given header and that many bytes of data: 0, 1, 2, ...
inline std::string safetensors_bytes(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

inline std::string with_header_length(std::string file, std::uint64_t length) {
  std::memcpy(file.data(), &length, sizeof length);
  return file;
}

struct GoodFile {
  std::string name, bytes;
};

inline std::vector<GoodFile> good_files() {
  return {
      {"empty", safetensors_bytes("{}", 0)},
      {"padded", safetensors_bytes("{}      ", 0)},
      {"metadata", safetensors_bytes(R"({"__metadata__":{"case":"{\"score\": \"dot\"}","é":"ü"}})", 0)},
      {"one", safetensors_bytes(R"({"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24)},
      {"scalar", safetensors_bytes(R"({"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8)},
      {"no_elements", safetensors_bytes(R"({"x":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", 0)},
      {"unaligned", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                      R"("x":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})",
                                      11)},
      {"all_types", safetensors_bytes(R"({"f64":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                                      R"("i64":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
                                      R"("f32":{"dtype":"F32","shape":[1],"data_offsets":[16,20]},)"
                                      R"("i32":{"dtype":"I32","shape":[1],"data_offsets":[20,24]},)"
                                      R"("bf16":{"dtype":"BF16","shape":[1],"data_offsets":[24,26]},)"
                                      R"("f16":{"dtype":"F16","shape":[1],"data_offsets":[26,28]},)"
                                      R"("bool":{"dtype":"BOOL","shape":[1],"data_offsets":[28,29]},)"
                                      R"("i8":{"dtype":"I8","shape":[1],"data_offsets":[29,30]},)"
                                      R"("u8":{"dtype":"U8","shape":[1],"data_offsets":[30,31]},)"
                                      R"("f8":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[31,32]},)"
                                      R"("later":{"dtype":"F4","shape":[9],"data_offsets":[32,37]}})",
                                      37)},
  };
}

struct BadFile {
  std::string name, bytes;
  std::string message;  // a part of what the error says
};

inline std::string one_tensor(std::string_view fields, std::size_t data_bytes) {
  return safetensors_bytes(R"({"x":{)" + std::string(fields) + "}}", data_bytes);
}

inline std::vector<BadFile> bad_headers() {
  const std::string good = good_files()[3].bytes;
  const std::string f32 = R"("dtype":"F32","shape":[2])";
  return {
      {"no_bytes", "", "the file has 0 bytes"},
      {"seven_bytes", good.substr(0, 7), "the file has 7 bytes"},
      {"truncated_header", good.substr(0, 20), "runs past the end of the file of 20 bytes"},
      {"truncated_data", good.substr(0, good.size() - 1), "ends at 24, past the 23 bytes of data"},
      {"trailing_data", good + "?", "the tensors end at 24 but the data has 25 bytes"},
      {"huge_header", with_header_length(good, 0xffffffffffffffffu), "header length 18446744073709551615 is over"},
      {"header_past_end", with_header_length(good, good.size()), "runs past the end"},
      {"header_cut", with_header_length(good, 30), "not valid JSON"},
      {"empty_header", safetensors_bytes("", 0), "does not begin with '{'"},
      {"leading_space", safetensors_bytes(" {}", 0), "does not begin with '{'"},
      {"list", safetensors_bytes("[]", 0), "does not begin with '{'"},
      {"two_values", safetensors_bytes("{}{}", 0), "not valid JSON"},
      {"not_utf8", safetensors_bytes("{\"\xc3\x28\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0),
       "not valid JSON"},
      {"deep", safetensors_bytes("{\"x\":" + std::string(100000, '['), 0), "nested deeper than 4"},
      {"name_twice",
       safetensors_bytes(R"({"x":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                         R"("x":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
                         2),
       "names 'x' twice"},
      {"field_twice", one_tensor(f32 + R"(,"data_offsets":[0,8],"data_offsets":[0,8])", 8), "'data_offsets' twice"},
      {"metadata_number", safetensors_bytes(R"({"__metadata__":{"epoch":7}})", 0), "'epoch' is '7', not a string"},
      {"metadata_list", safetensors_bytes(R"({"__metadata__":[]})", 0), "__metadata__ is '[]', not an object"},
  };
}

inline std::vector<BadFile> bad_tensors() {
  const std::string f32 = R"("dtype":"F32","shape":[2])";
  const std::string places = R"("data_offsets":[0,8])";
  return {
      {"tensor_number", safetensors_bytes(R"({"x":7})", 0), "tensor 'x' is '7', not an object"},
      {"no_dtype", one_tensor(R"("shape":[2],)" + places, 8), "tensor 'x' has no dtype"},
      {"no_shape", one_tensor(R"("dtype":"F32",)" + places, 8), "tensor 'x' has no shape"},
      {"no_offsets", one_tensor(f32, 8), "tensor 'x' has no data_offsets"},
      {"extra_field", one_tensor(f32 + "," + places + R"(,"stride":[1])", 8), "unknown field 'stride'"},
      {"dtype_number", one_tensor(R"("dtype":32,"shape":[2],)" + places, 8), "dtype '32', not a string"},
      {"shape_number", one_tensor(R"("dtype":"F32","shape":2,)" + places, 8), "shape '2', not a list"},
      {"shape_negative", one_tensor(R"("dtype":"F32","shape":[-2],)" + places, 8), "'-2' in shape, not a natural"},
      {"shape_fraction", one_tensor(R"("dtype":"F32","shape":[2.0],)" + places, 8), "'2.0' in shape, not a natural"},
      {"shape_text", one_tensor(R"("dtype":"F32","shape":["2"],)" + places, 8), "in shape, not a natural"},
      {"shape_over_63_bits", one_tensor(R"("dtype":"F32","shape":[9223372036854775808],)" + places, 8),
       "size 9223372036854775808, over 63 bits"},
      {"shape_overflow", one_tensor(R"("dtype":"F32","shape":[4611686018427387904,4],)" + places, 8),
       "multiply to more than 64 bits"},
      {"shape_wraps_to_fit", one_tensor(R"("dtype":"F32","shape":[4611686018427387906,1],)" + places, 8),
       "multiply to more than 64 bits"},
      {"offsets_one", one_tensor(f32 + R"(,"data_offsets":[8])", 8), "1 data_offsets, expected 2"},
      {"offsets_negative", one_tensor(f32 + R"(,"data_offsets":[-8,0])", 8), "'-8' in data_offsets, not a natural"},
      {"offsets_huge", one_tensor(f32 + R"(,"data_offsets":[0,99999999999999999999])", 8), "not a natural number"},
      {"offsets_backwards", one_tensor(f32 + R"(,"data_offsets":[8,0])", 8), "begins at 8, after its end 0"},
      {"offsets_past_end", one_tensor(f32 + R"(,"data_offsets":[4,12])", 8), "ends at 12, past the 8 bytes"},
      {"size_mismatch", one_tensor(R"("dtype":"F64","shape":[2],)" + places, 8),
       "8 bytes of data, but F64 [2] takes 16"},
      {"unsupported_size_mismatch", one_tensor(R"("dtype":"U16","shape":[2],)" + places, 8), "takes 4"},
      {"hole_at_start", one_tensor(f32 + R"(,"data_offsets":[4,12])", 12), "bytes [0, 4) before tensor 'x'"},
      {"overlap",
       safetensors_bytes(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"I8","shape":[4],"data_offsets":[3,7]}})",
                         7),
       "tensor 'b' begins at 3, inside 'a' which ends at 4"},
      {"hole",
       safetensors_bytes(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"I8","shape":[4],"data_offsets":[5,9]}})",
                         9),
       "bytes [4, 5) before tensor 'b' belong to no tensor"},
  };
}

}  // namespace rootdk::test
