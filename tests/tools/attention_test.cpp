// rootdk attention: its options, its extra inputs, and everything that can go wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/safetensors.h"
#include "rootdk/attention.h"
#include "tools/command.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;
using test::file_content;
using test::run_rootdk;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using testing::StartsWith;

constexpr float kRounding = 1e-5f;  // between two ways through a kernel

const std::string kFixture = ROOTDK_TEST_DATA "/attention/001.safetensors";

constexpr const char* kPlainCase =
    R"({"score":"dot","scale":0.5,"temperature":1.0,"softcap":0.0,"causal":false,"window_left":-1,"window_right":-1})";

Tensor wave(DType dtype, std::initializer_list<std::int64_t> shape, float phase) {
  Tensor tensor(DType::f32, shape);
  for (float& value : tensor.values<float>()) value = std::sin(phase += 0.7f);
  return convert(tensor, dtype);
}

// A case of 2 heads, 6 queries, 6 keys, head_dim 4 to add to.
class AttentionTest : public testing::Test {
 protected:
  fs::path write_case(const std::string& fields = kPlainCase) {
    std::vector<NamedTensor> tensors = {{"q", q_}, {"k", k_}, {"v", v_}, {"grad_out", grad_out_}};
    tensors.insert(tensors.end(), extra_.begin(), extra_.end());
    write_safetensors(folder_ / "case.safetensors", tensors, {{"case", fields}});
    return folder_ / "case.safetensors";
  }

  // The plain case with one field replaced or added.
  static std::string with_field(const std::string& name, const nlohmann::json& value) {
    nlohmann::json fields = nlohmann::json::parse(kPlainCase);
    fields[name] = value;
    return fields.dump();
  }

  SafetensorsFile attend(std::vector<std::string> options = {}, const std::string& fields = kPlainCase) {
    const std::string out = folder_ / "out.safetensors";
    options.insert(options.begin(), {"attention", write_case(fields), "--out", out});
    const auto run = run_rootdk(options);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return SafetensorsFile::open(out);
  }

  std::string error_of(const std::string& fields) {
    const auto run = run_rootdk({"attention", write_case(fields)});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_EQ(run.out, "");
    return run.err;
  }

  test::TemporaryFolder folder_;
  Tensor q_ = wave(DType::f32, {1, 2, 6, 4}, 1), k_ = wave(DType::f32, {1, 2, 6, 4}, 2);
  Tensor v_ = wave(DType::f32, {1, 2, 6, 4}, 3), grad_out_ = wave(DType::f32, {1, 2, 6, 4}, 4);
  std::vector<NamedTensor> extra_;
};

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const ConstTensorView view = file.tensor(name);
  return {view.as<float>(), view.as<float>() + view.elements()};
}

TEST_F(AttentionTest, KeepsItsOldName) {
  const auto run = run_rootdk({"attend", write_case(), "--out", folder_ / "old.safetensors"});
  EXPECT_EQ(0, run.exit_code) << run.err;
  EXPECT_TRUE(fs::exists(folder_ / "old.safetensors"));
}

TEST_F(AttentionTest, PrintsASummary) {
  const auto run = run_rootdk({"attention", kFixture, "--target", "reference"});
  EXPECT_EQ(run.exit_code, 0);
  for (const char* part : {"f32 [1, 2, 37, 128]", "forward   reference", "backward  reference", "largest logit"}) {
    EXPECT_THAT(run.out, HasSubstr(part));
  }
}

TEST_F(AttentionTest, PrintsJson) {
  const auto run = run_rootdk({"attention", kFixture, "--target", "reference", "--json", "--threads", "1"});
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["forward"]["implementation"], "reference");
  EXPECT_EQ(json["shape"]["q"], nlohmann::json({1, 2, 37, 128}));
  EXPECT_EQ(json["tensors"]["stats_column_mass"], nlohmann::json({1, 2, 50}));
  EXPECT_EQ(json["dtype"], "f32");
  EXPECT_TRUE(json["out"].is_null());
}

TEST_F(AttentionTest, ConvertsToTheTypeAsked) {
  const auto exact = floats(attend(), "out");
  for (const auto& [dtype, tolerance] : {std::pair{"bf16", 0.03}, std::pair{"f16", 0.004}}) {
    const SafetensorsFile file = attend({"--dtype", dtype});
    EXPECT_EQ(describe(file.tensor("out")), "f32 [1, 2, 6, 4]") << "16-bit results are written as F32";
    const auto rounded = floats(file, "out");
    EXPECT_NE(rounded, exact);
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(rounded[i], exact[i], tolerance);
  }
  const SafetensorsFile wide = attend({"--dtype", "f64"});
  EXPECT_EQ(wide.tensor("stats_lse").dtype, DType::f64);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(wide.tensor("out").as<double>()[i], exact[i], 1e-6);
}

TEST_F(AttentionTest, KeepsTheTypeOfTheFile) {
  q_ = wave(DType::bf16, {1, 2, 6, 4}, 1);
  const auto run = run_rootdk({"attention", write_case(), "--json"});
  EXPECT_EQ(nlohmann::json::parse(run.out)["dtype"], "bf16");
}

TEST_F(AttentionTest, WithoutGradOutThereIsNoBackward) {
  write_safetensors(folder_ / "case.safetensors", std::vector<NamedTensor>{{"q", q_}, {"k", k_}, {"v", v_}},
                    {{"case", kPlainCase}});
  const auto run = run_rootdk({"attention", folder_ / "case.safetensors", "--json"});
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_TRUE(json["backward"].is_null());
  EXPECT_FALSE(json["tensors"].contains("grad_q"));
}

TEST_F(AttentionTest, NamedScaleIsThatOfTheLibrary) {
  EXPECT_EQ(floats(attend({}, with_field("scale", "inverse_sqrt_head_dim")), "out"), floats(attend(), "out"));
  EXPECT_EQ(floats(attend({}, with_field("scale", "none")), "out"), floats(attend({}, with_field("scale", 1)), "out"));
}

// A mask, and the same mask as blocks of 3 x 2, and as a bias of -inf.
TEST_F(AttentionTest, MasksAgree) {
  Tensor mask(DType::boolean, {1, 1, 6, 6}), blocks(DType::boolean, {1, 1, 2, 3}), bias(DType::f32, {1, 1, 6, 6});
  const bool kept[2][3] = {{true, false, true}, {false, true, true}};
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t j = 0; j < 6; ++j) {
      const bool keep = kept[i / 3][j / 2];
      mask.values<bool>()[i * 6 + j] = keep;
      blocks.values<bool>()[(i / 3) * 3 + j / 2] = keep;
      bias.values<float>()[i * 6 + j] = keep ? 0.0f : -INFINITY;
    }
  }
  const auto plain = attend();
  extra_ = {{"mask", mask}};
  const auto masked = attend();
  EXPECT_NE(floats(masked, "out"), floats(plain, "out"));
  extra_ = {{"block_mask", blocks}};
  auto fields = nlohmann::json::parse(kPlainCase);
  fields["block_q"] = 3;
  fields["block_kv"] = 2;
  const auto blocked = attend({}, fields.dump());
  extra_ = {{"bias", bias}};
  const auto biased = attend();
  for (const char* name : {"out", "grad_q", "stats_entropy", "stats_column_mass"}) {
    EXPECT_THAT(floats(blocked, name), Pointwise(FloatNear(kRounding), floats(masked, name))) << name;
    EXPECT_THAT(floats(biased, name), Pointwise(FloatNear(kRounding), floats(masked, name))) << name;
  }
}

// ALiBi as slopes, and as the table over the distance that says the same.
TEST_F(AttentionTest, RelativeTableAgreesWithAlibi) {
  Tensor slopes(DType::f32, {2}), table(DType::f32, {2, 11});
  for (std::size_t h = 0; h < 2; ++h) {
    slopes.values<float>()[h] = h ? 0.25f : 0.5f;
    for (int t = 0; t < 11; ++t) {
      table.values<float>()[h * 11 + static_cast<std::size_t>(t)] = -slopes.values<float>()[h] * std::abs(t - 5);
    }
  }
  extra_ = {{"alibi_slopes", slopes}};
  const auto sloped = attend();
  EXPECT_EQ(describe(sloped.tensor("grad_alibi_slopes")), "f32 [2]");
  extra_ = {{"relative_table", table}};
  const auto tabled = attend({}, with_field("relative_zero", 5));
  EXPECT_THAT(floats(tabled, "out"), Pointwise(FloatNear(kRounding), floats(sloped, "out")));
  EXPECT_EQ(describe(tabled.tensor("grad_relative_table")), "f32 [2, 11]");
}

TEST_F(AttentionTest, PackedSequencesDoNotSeeEachOther) {
  Tensor starts(DType::i64, {3});
  starts.values<std::int64_t>()[1] = 2;
  starts.values<std::int64_t>()[2] = 6;
  extra_ = {{"q_starts", starts}, {"kv_starts", starts}};
  const auto before = floats(attend(), "out");
  for (float& value : v_.values<float>().subspan(0, 2 * 4)) value += 1;  // head 0, the keys of sequence 0
  const auto after = floats(attend(), "out");
  for (std::size_t i = 0; i < 6 * 4; ++i) {
    if (i < 2 * 4) {
      EXPECT_NEAR(after[i], before[i] + 1, 1e-6);
    } else {
      EXPECT_EQ(after[i], before[i]);
    }
  }
}

TEST_F(AttentionTest, DropoutFollowsItsSeed) {
  auto fields = nlohmann::json::parse(with_field("dropout", 0.5));
  fields["seed"] = 7;
  const auto first = floats(attend({}, fields.dump()), "out");
  EXPECT_EQ(floats(attend({}, fields.dump()), "out"), first);
  fields["seed"] = 8;
  EXPECT_NE(floats(attend({}, fields.dump()), "out"), first);
}

TEST_F(AttentionTest, WrongFieldsAreNamedWithTheirValue) {
  auto fields = nlohmann::json::parse(kPlainCase);
  for (const auto& [name, value] : fields.items()) {
    auto without = fields;
    without.erase(name);
    EXPECT_THAT(error_of(without.dump()), HasSubstr("\"case\" has no field \"" + name + "\"")) << name;
    const std::string wrong = error_of(with_field(name, nlohmann::json::array({1})));
    EXPECT_THAT(wrong, HasSubstr("\"" + name + "\" of \"case\" is [1], expected")) << name;
  }
  EXPECT_THAT(error_of(with_field("score", "euclid")), HasSubstr("is \"euclid\", expected dot, cosine or additive"));
  EXPECT_THAT(error_of(with_field("scale", "big")), HasSubstr("is \"big\", expected a number"));
  EXPECT_THAT(error_of(with_field("window_left", 1.5)), HasSubstr("is 1.5, expected an integer"));
  EXPECT_THAT(error_of(with_field("window_left", -2)), HasSubstr("window_left -2 must be"));
  EXPECT_THAT(error_of(with_field("temperature", 0)), HasSubstr("temperature 0 must be positive"));
  EXPECT_THAT(error_of(with_field("dropout", 0.5)), HasSubstr("no field \"seed\""));
  EXPECT_THAT(error_of(with_field("dropout", 1.5)), HasSubstr("no field \"seed\""));
  EXPECT_THAT(error_of(with_field("score", "additive")), HasSubstr("needs additive_v"));
  EXPECT_THAT(error_of("not json"), HasSubstr("\"case\" is not a JSON object: not json"));
  const auto run = run_rootdk({"attention", write_case(with_field("colour", "red"))});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("warning: ")) << "an unknown field is said, not fatal";
  EXPECT_THAT(run.err, HasSubstr("\"colour\""));
}

TEST_F(AttentionTest, WrongTensorsAreNamed) {
  Tensor lengths(DType::f32, {1}), big(DType::i64, {1}), mask(DType::f32, {1, 1, 6, 6});
  big.values<std::int64_t>()[0] = std::int64_t{1} << 40;
  extra_ = {{"kv_lengths", lengths}};
  EXPECT_THAT(error_of(kPlainCase), HasSubstr("tensor 'kv_lengths' is f32 [1], expected i32"));
  extra_ = {{"kv_lengths", big}};
  EXPECT_THAT(error_of(kPlainCase), HasSubstr("tensor 'kv_lengths' holds 1099511627776"));
  extra_ = {{"mask", mask}};
  EXPECT_THAT(error_of(kPlainCase), HasSubstr("tensor 'mask' is f32 [1, 1, 6, 6], expected bool"));
  extra_ = {};
  k_ = wave(DType::f32, {1, 2, 6, 5}, 2);
  EXPECT_THAT(error_of(kPlainCase), HasSubstr("head_dim of q is 4 but of k 5"));
  q_ = wave(DType::f32, {6, 4}, 2);
  EXPECT_THAT(error_of(kPlainCase), HasSubstr("of rank 4, got f32 [6, 4]"));
  write_safetensors(folder_ / "x", std::vector<NamedTensor>{{"q", q_}}, {{"case", kPlainCase}});
  EXPECT_THAT(run_rootdk({"attention", folder_ / "x"}).err, HasSubstr("there is no tensor 'k'"));
  write_safetensors(folder_ / "x", std::vector<NamedTensor>{{"q", v_}, {"k", v_}, {"v", v_}});
  EXPECT_THAT(run_rootdk({"attention", folder_ / "x"}).err, HasSubstr("the metadata has no \"case\""));
}

TEST_F(AttentionTest, FilesThatCannotBeRead) {
  const auto missing = run_rootdk({"attention", folder_ / "none.safetensors"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, StartsWith("rootdk: cannot open "));
  EXPECT_THAT(missing.err, HasSubstr("none.safetensors: No such file or directory"));
  std::ofstream(folder_ / "bad.safetensors") << file_content(kFixture).substr(0, 5000);
  const auto corrupt = run_rootdk({"attention", folder_ / "bad.safetensors"});
  EXPECT_EQ(corrupt.exit_code, 1);
  EXPECT_THAT(corrupt.err, StartsWith("rootdk: safetensors: "));
  EXPECT_THAT(corrupt.err, HasSubstr("bad.safetensors: tensor "));
}

TEST_F(AttentionTest, UsageErrors) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "A subcommand is required"},
      {{"dance"}, "there is no 'dance'"},
      {{"attention"}, "case is required"},
      {{"attention", kFixture, "--dtype", "f8"}, "--dtype: f8 not in"},
      {{"attention", kFixture, "--device", "tpu"}, "--device: tpu not in"},
      {{"attention", kFixture, "--threads", "0"}, "--threads"},
      {{"attention", kFixture, "--colour"}, "there is no '--colour'"}};
  for (const auto& [arguments, message] : cases) {
    const auto run = run_rootdk(arguments);
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_THAT(run.err, StartsWith("rootdk: "));
    EXPECT_THAT(run.err, HasSubstr(message));
    EXPECT_THAT(run.err, HasSubstr("--help'"));
    EXPECT_EQ(run.out, "");
  }
  EXPECT_EQ(run_rootdk({"attention", "--help"}).exit_code, 0);
}

TEST_F(AttentionTest, UnknownTargetNamesThoseThereAre) {
  const auto run = run_rootdk({"attention", kFixture, "--target", "abacus", "--out", folder_ / "out"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("--target 'abacus' is unknown; here there are: "));
  EXPECT_THAT(run.err, HasSubstr("reference"));
  EXPECT_THAT(folder_.files(), ElementsAre());
}

TEST_F(AttentionTest, FailureToWriteLosesAndLeavesNothing) {
  const std::string absent = folder_ / "absent" / "out.safetensors";
  EXPECT_THAT(run_rootdk({"attention", kFixture, "--out", absent}).err, HasSubstr("cannot write " + absent));
  std::ofstream(folder_ / "out.safetensors") << "precious";
  const auto run =
      run_rootdk({"attention", write_case(with_field("softcap", -1)), "--out", folder_ / "out.safetensors"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(file_content(folder_ / "out.safetensors"), "precious");
  fs::create_directory(folder_ / "folder");
  EXPECT_EQ(run_rootdk({"attention", kFixture, "--out", folder_ / "folder"}).exit_code, 1);
  EXPECT_THAT(folder_.files(), ElementsAre("case.safetensors", "folder", "out.safetensors"));
}

TEST_F(AttentionTest, ResultsMayReplaceTheirOwnCase) {
  const std::string path = write_case();
  const auto run = run_rootdk({"attention", path, "--out", path});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(SafetensorsFile::open(path).contains("stats_lse"));
}

}  // namespace
}  // namespace rootdk
