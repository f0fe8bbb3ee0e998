// Tokenizers of each family, small enough to check by hand.

#include "models/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "models/train_tokenizer.h"
#include "rootdk/error.h"

namespace rootdk {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tokenizer make(const Json& json) { return Tokenizer::parse(json.dump(), "tokenizer.json"); }

std::vector<std::string> tokens_of(const Tokenizer& tokenizer, const std::string& text, bool special = false) {
  std::vector<std::string> tokens;
  for (const std::int32_t id : tokenizer.encode(text, special)) tokens.push_back(tokenizer.token(id));
  return tokens;
}

std::string error_of(const std::string& text) {
  try {
    Tokenizer::parse(text, "tokenizer.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// All bytes as tokens, with merges for "he", "llo" and " w".
Json byte_level(const Json& pre_tokenizer) {
  Json json = Json::parse(bpe_tokenizer_json("x", 256));
  Json& model = json["model"];
  int next = 256;
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
           {"h", "e"}, {"l", "o"}, {"l", "lo"}, {"\xC4\xA0", "w"}, {"he", "llo"}}) {
    model["merges"].push_back(left + " " + right);
    model["vocab"][left + right] = next++;
  }
  json["pre_tokenizer"] = pre_tokenizer;
  return json;
}

const Json kGpt2 = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
const Json kLlama3 = {{"type", "Sequence"},
                      {"pretokenizers",
                       {{{"type", "Split"},
                         {"pattern",
                          {{"Regex",
                            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                            "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r"
                            "\\n]+|\\s+(?!\\S)|\\s+"}}},
                         {"behavior", "Isolated"},
                         {"invert", false}},
                        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};

const char* const kTexts[] = {"hello world",
                              "It's 12345 o'clock,\n\n  isn't it?",
                              "na\xC3\xAFve \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\x80\t!",
                              "   leading spaces",
                              "trailing   ",
                              ""};

TEST(ByteLevelBpe, MergesInTheOrderOfTheirRank) {
  const Tokenizer tokenizer = make(byte_level(kGpt2));
  EXPECT_THAT(tokens_of(tokenizer, "hello world"), ElementsAre("hello", "\xC4\xA0w", "o", "r", "l", "d"));
  // "lo" is learned before "llo" and nothing joins across a cut.
  EXPECT_THAT(tokens_of(tokenizer, "lo llo"), ElementsAre("lo", "\xC4\xA0", "llo"));
}

TEST(ByteLevelBpe, CutsAsGpt2AndLlama3Do) {
  // With no merges every byte is a token, so the cuts show only through merges: compare numbers, which differ.
  Json json = byte_level(kGpt2);
  json["model"]["vocab"]["12"] = 300;
  json["model"]["vocab"]["34"] = 301;
  json["model"]["vocab"]["1234"] = 302;
  for (const char* merge : {"1 2", "3 4", "12 34"}) json["model"]["merges"].push_back(merge);
  EXPECT_THAT(tokens_of(make(json), "1234"), ElementsAre("1234"));
  json["pre_tokenizer"] = kLlama3;  // numbers of three digits at most
  EXPECT_THAT(tokens_of(make(json), "1234"), ElementsAre("12", "3", "4"));
}

TEST(ByteLevelBpe, IgnoreMergesTakesWholePieces) {
  Json json = byte_level(kGpt2);
  json["model"]["vocab"]["cat"] = 300;
  EXPECT_THAT(tokens_of(make(json), "cat"), ElementsAre("c", "a", "t"));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(tokens_of(make(json), "cat"), ElementsAre("cat"));
}

TEST(ByteLevelBpe, RoundTripsAnyText) {
  for (const Json& pre_tokenizer : {kGpt2, kLlama3}) {
    const Tokenizer tokenizer = make(byte_level(pre_tokenizer));
    for (const std::string text : kTexts) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

// As Llama 2: spaces as U+2581, bytes for what is not in the vocabulary.
Json byte_fallback() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  constexpr char kDigits[] = "0123456789ABCDEF";
  int next = 3;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = next++;
  }
  for (const char* token : {"\xE2\x96\x81", "h", "i", "a", "\xE2\x96\x81h", "hi", "\xE2\x96\x81hi"})
    vocab[token] = next++;
  auto special = [](int id, const char* content) {
    return Json{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  };
  return {{"added_tokens", {special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"\xE2\x96\x81 h", "h i", "\xE2\x96\x81h i"}}}}};
}

TEST(ByteFallbackBpe, UsesBytesForUnknownCharacters) {
  const Tokenizer tokenizer = make(byte_fallback());
  EXPECT_THAT(tokens_of(tokenizer, "hi \xC3\xA9", true),
              ElementsAre("<s>", "\xE2\x96\x81hi", "\xE2\x96\x81", "<0xC3>", "<0xA9>"));
  for (const std::string text : kTexts) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << text;
  EXPECT_THAT(tokenizer.encode(""), ElementsAre(1));
}

TEST(ByteFallbackBpe, SpecialTokensInTextAreOneToken) {
  const Tokenizer tokenizer = make(byte_fallback());
  const std::vector<std::int32_t> ids = tokenizer.encode("hi</s>hi", false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  EXPECT_EQ(tokenizer.decode(ids), "hi hi");
  EXPECT_THAT(tokenizer.decode(ids, true), HasSubstr("</s>"));
}

TEST(StreamDecoder, HandsOutWholeCharacters) {
  const Tokenizer tokenizer = make(byte_fallback());
  StreamDecoder stream(tokenizer);
  std::string text;
  int silent = 0;
  for (const std::int32_t id : tokenizer.encode("hi \xF0\x9F\x98\x80!", false)) {
    const std::string part = stream.push(id);
    silent += part.empty();
    text += part;
  }
  EXPECT_EQ(text, "hi \xF0\x9F\x98\x80!");
  EXPECT_EQ(silent, 3);  // the first three bytes of the face
}

Json word_piece() {
  const Json vocab = {{"[UNK]", 0}, {"[CLS]", 1}, {"[SEP]", 2}, {"play", 3},         {"##ing", 4}, {"##ed", 5},
                      {"the", 6},   {"cafe", 7},  {",", 8},     {"\xE6\x97\xA5", 9}, {"##s", 10},  {".", 11}};
  auto special = [](int id, const char* content) { return Json{{"id", id}, {"content", content}, {"special", true}}; };
  return {{"added_tokens", {special(0, "[UNK]"), special(1, "[CLS]"), special(2, "[SEP]")}},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", {{"type", "BertProcessing"}, {"sep", {"[SEP]", 2}}, {"cls", {"[CLS]", 1}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"continuing_subword_prefix", "##"}, {"vocab", vocab}}}};
}

TEST(WordPiece, CutsNormalisesAndDecodes) {
  const Tokenizer tokenizer = make(word_piece());
  EXPECT_THAT(tokens_of(tokenizer, "Playing, the Caf\xC3\xA9s\xE6\x97\xA5 xyz", true),
              ElementsAre("[CLS]", "play", "##ing", ",", "the", "cafe", "##s", "\xE6\x97\xA5", "[UNK]", "[SEP]"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("played, the cafes.")), "played, the cafes.");
}

Json unigram() {
  const Json vocab = Json::array({Json::array({"<pad>", 0.0}), Json::array({"</s>", 0.0}), Json::array({"<unk>", 0.0}),
                                  Json::array({"\xE2\x96\x81", -2.0}), Json::array({"\xE2\x96\x81the", -3.0}),
                                  Json::array({"\xE2\x96\x81th", -3.5}), Json::array({"e", -2.5}),
                                  Json::array({"re", -4.0}), Json::array({"r", -3.0}), Json::array({"there", -9.0})});
  auto special = [](int id, const char* content) { return Json{{"id", id}, {"content", content}, {"special", true}}; };
  return {{"added_tokens", {special(0, "<pad>"), special(1, "</s>"), special(2, "<unk>")}},
          {"normalizer", {{"type", "NFKC"}}},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"add_prefix_space", true}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}}}},
          {"decoder", {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"add_prefix_space", true}}},
          {"model", {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", vocab}}}};
}

TEST(Unigram, TakesTheLikeliestSplit) {
  const Tokenizer tokenizer = make(unigram());
  // _the + re: -7; _the + r + e: -8.5; _ + there: -11.
  EXPECT_THAT(tokens_of(tokenizer, "there", true), ElementsAre("\xE2\x96\x81the", "re", "</s>"));
  EXPECT_THAT(tokens_of(tokenizer, "the zz"), ElementsAre("\xE2\x96\x81the", "\xE2\x96\x81", "<unk>"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the there")), "the there");
  // NFKC: full-width letters become plain ones.
  EXPECT_EQ(tokenizer.encode("\xEF\xBD\x94\xEF\xBD\x88\xEF\xBD\x85"), tokenizer.encode("the"));
}

TEST(MadeTokenizers, CharactersAndBpeRoundTrip) {
  const std::string text = "To be, or not to be: that is the question.\nTo be!\n";
  const Tokenizer characters = Tokenizer::parse(character_tokenizer_json(text), "made");
  EXPECT_EQ(characters.decode(characters.encode(text)), text);
  EXPECT_EQ(characters.encode(text).size(), text.size());
  EXPECT_EQ(characters.encode("#"), std::vector<std::int32_t>{0});  // <unk>
  const Tokenizer bpe = Tokenizer::parse(bpe_tokenizer_json(text, 260), "made");
  EXPECT_EQ(bpe.vocab_size(), 260);
  EXPECT_EQ(bpe.decode(bpe.encode(text)), text);
  EXPECT_LT(bpe.encode(text).size(), text.size());
  EXPECT_EQ(bpe_tokenizer_json(text, 260), bpe_tokenizer_json(text, 260));
}

// A file from anywhere may hold steps that never end, or that make much of little.
TEST(Bounds, TimeIsNamedInTheError) {
  const auto with_split = [](const std::string& expression) {
    return R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "Split",
      "behavior": "Isolated", "pattern": {"Regex": ")" +
           expression + R"("}}})";
  };
  const auto error_on = [](const Tokenizer& tokenizer, const std::string& text) -> std::string {
    try {
      tokenizer.encode(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const Tokenizer exponential = Tokenizer::parse(with_split("(a+)+b"), "made");
  EXPECT_THAT(error_on(exponential, std::string(40, 'a')), HasSubstr("seconds of processor time"));
  const Tokenizer quadratic = Tokenizer::parse(with_split("(?:a|b)*c|."), "made");
  EXPECT_THAT(error_on(quadratic, std::string(100000, 'a')), HasSubstr("seconds of processor time"));
}

TEST(Bounds, GrowthIsNamedInTheError) {
  std::string steps;
  for (int i = 0; i < 4; ++i) {
    steps += std::string(i ? ", " : "") + R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")" +
             std::string(100, 'a') + "\"}";
  }
  const Tokenizer tokenizer = Tokenizer::parse(
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"type": "Sequence",
      "normalizers": [)" +
          steps + "]}}",
      "made");
  try {
    tokenizer.encode(std::string(45, 'a'));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("grows beyond the bound of 1051456 bytes"));
  }
}

TEST(Bounds, LongRunsOfBlanksAreNoError) {
  const Tokenizer tokenizer = make(byte_level(kGpt2));
  const std::string blanks(1000000, ' ');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(blanks)), blanks);
}

TEST(Errors, NameThePartThatIsNotSupported) {
  EXPECT_THAT(error_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\xFF\": 0}, \"merges\": []}}"),
              HasSubstr("not valid JSON"));  // not UTF-8
  EXPECT_THAT(error_of("{}"), HasSubstr("model is missing"));
  EXPECT_THAT(error_of(R"({"model": {"type": "WordLevel", "vocab": {}}})"),
              HasSubstr("model \"WordLevel\" is not supported; supported: BPE, WordPiece, Unigram"));
  EXPECT_THAT(error_of(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})"),
              HasSubstr("b is not in the vocabulary"));
  EXPECT_THAT(error_of(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"), HasSubstr("-1"));
  EXPECT_THAT(error_of(R"({"model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": {"type": "Nmt"}})"),
              HasSubstr("normalizer \"Nmt\" is not supported"));
  EXPECT_THAT(error_of(R"({"model": {"type": "BPE", "vocab": {}, "merges": []},
      "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}})"),
              HasSubstr("expression ( is not supported"));
  const Tokenizer tokenizer = make(byte_level(kGpt2));
  EXPECT_THROW(tokenizer.encode("\xC3"), Error);
  EXPECT_THROW(tokenizer.decode(std::vector<std::int32_t>{100000}), Error);
}

}  // namespace
}  // namespace rootdk
