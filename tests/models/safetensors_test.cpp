#include "models/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "models/safetensors_cases.h"
#include "rootdk/error.h"
#include "support/error_of.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;
using test::BadFile;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

SafetensorsFile parse(const std::string& bytes, std::string name = "FILE") {
  return SafetensorsFile::parse(std::as_bytes(std::span(bytes)), std::move(name));
}

std::string good_file(std::string_view name) {
  for (const auto& file : test::good_files()) {
    if (file.name == name) return file.bytes;
  }
  ADD_FAILURE() << "no case " << name;
  return {};
}

class SafetensorsFolder : public testing::Test {
 protected:
  std::vector<std::string> files() const { return folder_.files(); }

  static std::string content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const test::TemporaryFolder folder_;
};

class BadSafetensors : public testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensors, IsRefusedWithItsValues) {
  const std::string message = error_of([] { parse(GetParam().bytes, "dir/x.safetensors"); });
  EXPECT_THAT(message, HasSubstr("safetensors: dir/x.safetensors: "));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
}

const auto case_name = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Header, BadSafetensors, testing::ValuesIn(test::bad_headers()), case_name);
INSTANTIATE_TEST_SUITE_P(Tensor, BadSafetensors, testing::ValuesIn(test::bad_tensors()), case_name);

TEST(Safetensors, EveryPrefixOfAFileIsRefusedOrWhole) {
  const std::string bytes = good_file("all_types");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(parse(bytes.substr(0, size)), Error) << size << " of " << bytes.size() << " bytes";
  }
  EXPECT_NO_THROW(parse(bytes));
}

TEST(Safetensors, ReadsShapesAndValues) {
  const std::string bytes = good_file("one");
  const SafetensorsFile file = parse(bytes);
  EXPECT_THAT(file.names(), ElementsAre("x"));
  EXPECT_TRUE(file.contains("x"));
  EXPECT_FALSE(file.contains("y"));
  const ConstTensorView x = file.tensor("x");
  EXPECT_EQ(describe(x), "f32 [2, 3]");
  float third = 0;
  const unsigned char pattern[] = {8, 9, 10, 11};
  std::memcpy(&third, pattern, sizeof third);
  EXPECT_EQ(x.as<float>()[2], third);
  EXPECT_EQ(error_of([&] { file.tensor("y"); }), "safetensors: FILE: there is no tensor 'y'");
}

TEST(Safetensors, MapsEveryTypeAndRefusesOthersOnlyOnAccess) {
  const std::string bytes = good_file("all_types");
  const SafetensorsFile file = parse(bytes);
  const std::pair<const char*, DType> expected[] = {
      {"f64", DType::f64}, {"i64", DType::i64},      {"f32", DType::f32}, {"i32", DType::i32}, {"bf16", DType::bf16},
      {"f16", DType::f16}, {"bool", DType::boolean}, {"i8", DType::i8},   {"u8", DType::i32}};
  for (const auto& [name, dtype] : expected) EXPECT_EQ(file.tensor(name).dtype, dtype) << name;
  EXPECT_EQ(*file.tensor("u8").as<std::int32_t>(), 30);
  EXPECT_EQ(file.type_name("f8"), "F8_E4M3");
  EXPECT_THAT(error_of([&] { file.tensor("f8"); }), HasSubstr("tensor 'f8' has the type 'F8_E4M3', which is not"));
  EXPECT_THAT(error_of([&] { file.tensor("later"); }), HasSubstr("tensor 'later' has the type 'F4', which is not"));
}

TEST(Safetensors, CopiesUnalignedDataOnce) {
  const std::string bytes = good_file("unaligned");
  const SafetensorsFile file = parse(bytes);
  const ConstTensorView x = file.tensor("x");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.data) % alignof(float), 0u);
  EXPECT_EQ(std::memcmp(x.data, bytes.data() + bytes.size() - 8, 8), 0);
  const ConstTensorView u8 = file.tensor("a");
  EXPECT_THAT(std::span(u8.as<std::int32_t>(), 3), ElementsAre(0, 1, 2));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_EQ(file.tensor("x").data, x.data); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Safetensors, ScalarsEmptyTensorsAndHighRanks) {
  const std::string scalar = good_file("scalar");
  EXPECT_EQ(describe(parse(scalar).tensor("x")), "i64 [1]");
  EXPECT_TRUE(parse(scalar).shape("x").empty());
  EXPECT_EQ(describe(parse(good_file("no_elements")).tensor("x")), "f32 [0, 3]");
  const SafetensorsFile deep =
      parse(test::one_tensor(R"("dtype":"I8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1])", 1));
  EXPECT_THAT(error_of([&] { deep.tensor("x"); }), HasSubstr("rank 7, over the maximum 6"));
}

TEST(Safetensors, ReadsMetadataWithEscapesAndUnicode) {
  const auto metadata = parse(good_file("metadata")).metadata();
  EXPECT_EQ(metadata.at("case"), R"({"score": "dot"})");
  EXPECT_EQ(metadata.at("é"), "ü");
}

TEST(Safetensors, MessagesCarryNoControlCharacters) {
  const std::string file = test::safetensors_bytes("{\"\\u001b[31m\":7}", 0);
  EXPECT_THAT(error_of([&] { parse(file); }), HasSubstr("'?[31m'"));
}

TEST(Safetensors, OpensTheFixtures) {
  const auto file = SafetensorsFile::open(ROOTDK_TEST_DATA "/attention/000.safetensors");
  EXPECT_EQ(describe(file.tensor("q")), "f32 [3, 3, 1, 24]");
  EXPECT_THAT(file.metadata().at("case"), HasSubstr("\"score\""));
}

TEST_F(SafetensorsFolder, RoundTripKeepsEverything) {
  Tensor q(DType::f32, {2, 3}), mask(DType::boolean, {5}), wide(DType::f64, {1}), none(DType::bf16, {0, 4});
  for (std::size_t i = 0; i < 6; ++i) q.values<float>()[i] = static_cast<float>(i);
  mask.values<bool>()[3] = true;
  wide.values<double>()[0] = 0.1;
  const fs::path path = folder_ / "x.safetensors";
  write_safetensors(
      path,
      std::vector<NamedTensor>{
          {"mask", mask}, {"q", q}, {"q transposed", q.view().transposed(0, 1)}, {"wide", wide}, {"none", none}},
      {{"case", "{\"a\": \"ä\\n\"}"}, {"empty", ""}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_THAT(file.names(), ElementsAre("wide", "q", "q transposed", "none", "mask"));
  EXPECT_EQ(*file.tensor("wide").as<double>(), 0.1);
  EXPECT_THAT(std::span(file.tensor("q").as<float>(), 6), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(describe(file.tensor("q transposed")), "f32 [3, 2]");
  EXPECT_THAT(std::span(file.tensor("q transposed").as<float>(), 6), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_TRUE(file.tensor("mask").as<bool>()[3]);
  EXPECT_EQ(describe(file.tensor("none")), "bf16 [0, 4]");
  EXPECT_EQ(file.metadata().at("case"), "{\"a\": \"ä\\n\"}");
  EXPECT_EQ(file.metadata().at("empty"), "");
  EXPECT_THAT(files(), ElementsAre("x.safetensors"));
}

TEST_F(SafetensorsFolder, WritingRefusesWhatCannotBeRead) {
  Tensor x(DType::f32, {1});
  const fs::path path = folder_ / "x.safetensors";
  const auto write = [&](std::vector<NamedTensor> tensors, std::map<std::string, std::string> metadata = {}) {
    return error_of([&] { write_safetensors(path, tensors, metadata); });
  };
  EXPECT_THAT(write({{"x", x}, {"x", x}}), HasSubstr("tensor 'x' is given twice"));
  EXPECT_THAT(write({{"__metadata__", x}}), HasSubstr("cannot name a tensor"));
  EXPECT_THAT(write({{"x", ConstTensorView()}}), HasSubstr("tensor 'x' is not given"));
  EXPECT_THAT(write({{"\xff", x}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(write({}, {{"a", "\xff"}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(files(), ElementsAre());
}

TEST_F(SafetensorsFolder, FailureLosesNothingAndLeavesNothing) {
  Tensor x(DType::f32, {100000});
  const fs::path path = folder_ / "x.safetensors";
  std::ofstream(path) << "precious";
  // The disk is full after 1000 bytes.
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const struct rlimit small { 1000, limit.rlim_max };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of([&] { write_safetensors(path, std::vector<NamedTensor>{{"x", x}}); });
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("x.safetensors: cannot write: File too large"));
  EXPECT_EQ(content(path), "precious");
  EXPECT_THAT(files(), ElementsAre("x.safetensors"));
}

TEST_F(SafetensorsFolder, ReplacesOnlyRegularFiles) {
  Tensor x(DType::f32, {1});
  const std::vector<NamedTensor> tensors{{"x", x}};
  EXPECT_THAT(error_of([&] { write_safetensors(folder_ / "absent" / "x", tensors); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { write_safetensors(folder_.path(), tensors); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { write_safetensors("/dev/null", tensors); }), HasSubstr("not a regular file"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(folder_ / "pipe"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(folder_.path()); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(folder_ / "none"); }), HasSubstr("none: No such file"));
}

TEST_F(SafetensorsFolder, KeepsPermissionsAndFollowsLinks) {
  Tensor x(DType::f32, {1});
  const fs::path path = folder_ / "x", link = folder_ / "link";
  std::ofstream(path) << "old";
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  fs::create_symlink("x", link);
  write_safetensors(link, std::vector<NamedTensor>{{"x", x}});
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(SafetensorsFile::open(path).contains("x"));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
}

// Views reach into the mapping, which is not disturbed when the file is replaced by another.
TEST_F(SafetensorsFolder, ViewsSurviveAMoveAndAReplacedFile) {
  Tensor x(DType::f32, {1});
  x.values<float>()[0] = 1;
  const fs::path path = folder_ / "x";
  write_safetensors(path, std::vector<NamedTensor>{{"x", x}});
  SafetensorsFile first = SafetensorsFile::open(path);
  const ConstTensorView view = first.tensor("x");
  const SafetensorsFile moved = std::move(first);
  x.values<float>()[0] = 2;
  write_safetensors(path, std::vector<NamedTensor>{{"x", x}});
  EXPECT_EQ(*view.as<float>(), 1);
  EXPECT_EQ(*SafetensorsFile::open(path).tensor("x").as<float>(), 2);
}

}  // namespace
}  // namespace rootdk
