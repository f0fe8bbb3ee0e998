// pytorch_model.bin: a file that torch.save has written, models read from one, and pickles that ask for more.

#include "models/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "models/checkpoint.h"
#include "models/zip_writer.h"
#include "rootdk/error.h"
#include "support/error_of.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

using test::error_of;
using test::little_endian;
using test::zip;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text(const std::string& content) {
  return std::string("X").append(little_endian(content.size(), 4)).append(content);
}
std::string integer(std::int64_t value) {
  return std::string("J").append(little_endian(static_cast<std::uint32_t>(static_cast<std::int32_t>(value)), 4));
}

std::string tuple(const std::vector<std::int64_t>& numbers) {
  std::string code = "(";
  for (const std::int64_t number : numbers) code += integer(number);
  return code + "t";
}

std::string tensor(const std::string& storage_class, const std::string& key, std::int64_t offset,
                   const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + storage_class + "\n" + text(key) +
         text("cpu") + integer(0) + "tQ" + integer(offset) + tuple(shape) + tuple(strides) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

std::string pickle(const std::string& items) { return "\x80\x02}(" + items + "u."; }

std::string archive(const std::string& items, const std::string& storage = std::string(32, '\0')) {
  return zip({{"model/data.pkl", pickle(items)}, {"model/data/0", storage}});
}

std::string parse_error(const std::string& bytes) {
  return error_of([&] { TorchFile::parse(std::as_bytes(std::span(bytes)), "x.bin"); });
}

TEST(TorchFile, ReadsWhatTorchSaveWrites) {
  const TorchFile file = TorchFile::open(std::filesystem::path(ROOTDK_TEST_DATA) / "state_dict.bin");
  EXPECT_EQ(file.tensors().size(), 8u);
  const ConstTensorView f32 = file.tensor("f32"), tail = file.tensor("tail");
  EXPECT_EQ(describe(f32), "f32 [4, 6]");
  EXPECT_EQ(f32.as<float>()[23], 23.0f);
  EXPECT_EQ(tail.as<float>()[0], 18.0f);
  EXPECT_EQ(describe(file.tensor("bf16")), "bf16 [2, 3]");
  EXPECT_EQ(static_cast<float>(file.tensor("bf16").as<BFloat16>()[5]), 1.25f);
  EXPECT_EQ(static_cast<float>(file.tensor("f16").as<Float16>()[4]), 2.0f);
  EXPECT_EQ(file.tensor("i64").as<std::int64_t>()[2], std::int64_t{1} << 40);
  EXPECT_EQ(file.tensor("parameter").as<float>()[1], -0.5f);
  EXPECT_EQ(describe(file.tensor("scalar")), "f32 [1]");
  EXPECT_THAT(error_of([&] { file.tensor("turned"); }), HasSubstr("'turned' is not contiguous"));
  EXPECT_THAT(error_of([&] { file.tensor("absent"); }), HasSubstr("no tensor 'absent'"));
}

// A fixture's weights in a pytorch_model.bin give the logits of its safetensors.
TEST(TorchFile, ModelsAreReadFromIt) {
  const std::filesystem::path fixture = std::filesystem::path(ROOTDK_TEST_DATA) / "models" / "llama";
  const SafetensorsFile weights = SafetensorsFile::open(fixture / "model.safetensors");
  std::string items;
  std::vector<std::pair<std::string, std::string>> members = {{"model/data.pkl", ""}};
  for (const std::string& name : weights.names()) {
    const ConstTensorView view = weights.tensor(name);
    const std::string key = std::to_string(members.size());
    std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank), strides;
    for (int i = 0; i < view.rank; ++i) strides.push_back(view.stride(i));
    items += text(name) + tensor("FloatStorage", key, 0, shape, strides);
    members.emplace_back("model/data/" + key,
                         std::string(view.as<char>(), static_cast<std::size_t>(view.elements()) * sizeof(float)));
  }
  members[0].second = pickle(items);
  const test::TemporaryFolder folder;
  folder.write("pytorch_model.bin", zip(members));
  std::filesystem::copy_file(fixture / "config.json", folder / "config.json");
  Context context;
  const ModelInput input{.ids = {1, 5, 9, 2}};
  const Value found = load_model(folder.path()).forward(context, input).output;
  const Value expected = load_model(fixture).forward(context, input).output;
  EXPECT_EQ(std::memcmp(found->data(), expected->data(), expected->value().bytes()), 0);
}

TEST(TorchFile, RefusesFilesThatAreNoneAndPicklesThatAskForMore) {
  EXPECT_THAT(parse_error("\x80\x02}q."), HasSubstr("is no zip archive, as torch.save writes it"));
  EXPECT_THAT(parse_error("PK\3\4 and nothing else behind it"), HasSubstr("no zip archive"));
  EXPECT_THAT(parse_error(zip({{"model/data.pkl", pickle("")}}, 8)), HasSubstr("is compressed (method 8)"));
  EXPECT_THAT(parse_error(zip({{"model/else", ""}})), HasSubstr("has no data.pkl"));
  EXPECT_THAT(parse_error(archive(text("x") + "cos\nsystem\n(" + text("true") + "tR")), HasSubstr("calls 'os system'"));
  EXPECT_THAT(parse_error(archive(text("x") + "\x93")), HasSubstr("opcode 147"));
  EXPECT_THAT(parse_error(archive(text("x") + tensor("ComplexFloatStorage", "0", 0, {2}, {1}))),
              HasSubstr("storage of class 'torch ComplexFloatStorage'"));
  EXPECT_THAT(parse_error(archive(text("x") + tensor("FloatStorage", "1", 0, {2}, {1}))), HasSubstr("no storage 1"));
  for (const std::int64_t offset : {std::int64_t{7}, std::int64_t{-1}, std::int64_t{1} << 30}) {
    EXPECT_THAT(parse_error(archive(text("x") + tensor("FloatStorage", "0", offset, {2}, {1}))),
                HasSubstr("2 elements from"));
  }
  EXPECT_THAT(parse_error(archive(text("x") + tensor("FloatStorage", "0", 0, {1 << 30, 1 << 30, 1 << 30}, {1, 1, 1}))),
              HasSubstr("has shape"));
  EXPECT_THAT(
      parse_error(archive(text("x") + tensor("FloatStorage", "0", 0, {0, 1 << 30, 1 << 30, 1 << 30}, {1, 1, 1, 1}))),
      HasSubstr("has shape"));
  EXPECT_THAT(parse_error(archive(text("x") + tensor("FloatStorage", "0", 0, {2, 2}, {1}))), HasSubstr("strides"));
}

// A long tuple or name that is named again and again would be copied each time.
TEST(TorchFile, RefusesWhatGrows) {
  const std::vector<std::int64_t> many(1000, 1);
  EXPECT_THAT(parse_error(archive(text("x") + tensor("FloatStorage", "0", 0, many, many))),
              HasSubstr("a tensor of 1000 dimensions"));
  EXPECT_THAT(parse_error(archive(text("x") + tensor("FloatStorage", std::string(65, '0'), 0, {2}, {1}))),
              HasSubstr("a storage whose name has 65 bytes"));
}

// Any part of a good file, and a good file with any one byte changed, is read or refused, and nothing else.
TEST(TorchFile, SurvivesDamage) {
  const std::string good = archive(text("x") + tensor("FloatStorage", "0", 2, {2, 3}, {3, 1}));
  EXPECT_EQ(parse_error(good), "no error");
  for (std::size_t length = 0; length < good.size(); ++length) parse_error(good.substr(0, length));
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int change : {1, 128, 255}) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ change);
      parse_error(damaged);
    }
  }
}

}  // namespace
}  // namespace rootdk
