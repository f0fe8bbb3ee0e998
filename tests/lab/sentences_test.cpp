// What the page says and what its tables show agree: every number in a sentence of a claim, or below one of its
// figures, is one of the numbers of that claim.

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "lab/report/page.h"

namespace rootdk::lab {
namespace {

struct Number {
  std::string text;
  double value = 0;
  double unit = 0;  // of its last digit
};

// std::regex recurses once for every character that it skips, too deep for the pictures of a page: these only search.

std::string replaced(const std::string& text, std::string_view what, std::string_view by) {
  std::string result;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(what, at)) != std::string::npos; at = found + what.size()) {
    result += text.substr(at, found - at);
    result += by;
  }
  return result + text.substr(at);
}

// Every part of the text from `open` to the next `close` becomes a blank; what lies between them joins `inner`.
std::string cut_out(const std::string& text, std::string_view open, std::string_view close,
                    std::string* inner = nullptr) {
  std::string result;
  std::size_t at = 0;
  for (std::size_t begin; (begin = text.find(open, at)) != std::string::npos;) {
    const std::size_t from = begin + open.size(), end = text.find(close, from);
    if (end == std::string::npos) break;
    result += text.substr(at, begin - at) + " ";
    if (inner) *inner += text.substr(from, end - from) + "\n";
    at = end + close.size();
  }
  return result + text.substr(at);
}

std::string without_markup(std::string html) {
  html = replaced(replaced(html, "·10<sup>", "e"), "</sup>", "");
  html = cut_out(html, "<", ">");
  const std::pair<const char*, const char*> kEscapes[] = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&amp;", "&"}};
  for (const auto& [escape, character] : kEscapes) html = replaced(html, escape, character);
  return html;
}

// Numbers that stand by themselves: not the 2 of n^2, the 32 of float32 or the 1 of |a|_1.
std::vector<Number> numbers_of(const std::string& text) {
  static const std::regex kNumber("(^|[^A-Za-z0-9_.])([0-9]+(\\.[0-9]+)?(e-?[0-9]+)?)");
  std::vector<Number> numbers;
  for (std::sregex_iterator it(text.begin(), text.end(), kNumber), end; it != end; ++it) {
    const std::string digits = (*it)[2];
    if ((*it)[1] == "^" && digits.find('.') == std::string::npos) continue;
    const std::string mantissa = digits.substr(0, digits.find('e'));
    const std::size_t point = mantissa.find('.');
    double unit = 1;
    if (point != std::string::npos) {
      unit = std::pow(10.0, -static_cast<double>(mantissa.size() - point - 1));
    } else {  // 510 may be 512 to two digits
      unit = std::pow(10.0, static_cast<double>(mantissa.size() - 1 -
                                                std::min(mantissa.size() - 1, mantissa.find_last_not_of('0'))));
    }
    if (digits.size() > mantissa.size()) unit *= std::pow(10.0, std::stoi(digits.substr(mantissa.size() + 1)));
    numbers.push_back({digits, std::stod(digits), unit});
  }
  return numbers;
}

// Each number of the sentences that is not among those of the table, rounded as they are.
std::vector<std::string> unsupported(const std::string& sentences, const std::string& table) {
  const std::vector<Number> known = numbers_of(table);
  std::vector<std::string> missing;
  for (const Number& said : numbers_of(sentences)) {
    if (said.value <= 2 && said.value == std::floor(said.value)) continue;  // 1 / sqrt(d_k), [-1, 1]
    const bool found = std::any_of(known.begin(), known.end(), [&](const Number& shown) {
      const double rounding = shown.unit < said.unit ? 0.5 * shown.unit : 0;  // the table's own
      return std::abs(shown.value - said.value) <= 0.5000001 * said.unit + rounding;
    });
    if (!found) missing.push_back(said.text);
  }
  return missing;
}

struct Article {
  std::string sentences, table;
};

// The article of a claim on the page: its note and captions, and all the rest.
Article article_of(const std::string& page, int id) {
  const std::size_t begin = page.find("id=\"claim-" + std::to_string(id) + "\""), end = page.find("</article>", begin);
  std::string html = page.substr(begin, end - begin);
  html = html.substr(html.find('>') + 1);
  html = cut_out(html, "<svg", "</svg>");
  Article article;
  std::string sentences;
  html = cut_out(html, "<p class=\"note\">", "</p>", &sentences);
  html = cut_out(html, "<figcaption>", "</figcaption>", &sentences);
  article.sentences = without_markup(sentences);
  article.table = without_markup(html);
  return article;
}

TEST(Sentences, AgreeWithTheirTables) {
  std::vector<Result> results;
  for (const Claim& claim : catalogue()) results.push_back(measure(claim, Bench{.seed = 3, .quick = true}));
  const std::string page = report_page(results, {.seed = 3, .quick = true});
  int said = 0;
  for (const Result& result : results) {
    const Article article = article_of(page, result.claim.id);
    ASSERT_FALSE(article.sentences.empty()) << "claim " << result.claim.id;
    said += static_cast<int>(numbers_of(article.sentences).size());
    for (const std::string& number : unsupported(article.sentences, article.table))
      ADD_FAILURE() << "claim " << result.claim.id << " says " << number << ", which its table does not show:\n"
                    << article.sentences << "\n"
                    << article.table;
  }
  EXPECT_GT(said, 60);
}

TEST(Sentences, AWrongNumberIsNoticed) {
  Result result = measure(claim_by_id(13), Bench{.quick = true});
  const auto missing = [&] {
    const Article article = article_of(report_page({&result, 1}, {}), 13);
    return unsupported(article.sentences, article.table);
  };
  EXPECT_TRUE(missing().empty());
  result.finding.note = "Angles kept in float32 are off by up to 0.06 rad.";
  EXPECT_EQ(missing(), std::vector<std::string>{"0.06"});
}

TEST(Sentences, NumbersAreComparedAsTheyAreRounded) {
  EXPECT_TRUE(unsupported("it is 0.37, about 510", "0.3667 512").empty());
  EXPECT_EQ(unsupported("it is 0.38", "0.3667").size(), 1U);
  EXPECT_EQ(unsupported("it is 3.1e6", "3.2e6").size(), 1U);
  EXPECT_TRUE(unsupported("n^3 in float32 with |a|_7", "").empty());
  EXPECT_EQ(unsupported("it grows as n^1.9", "1.83").size(), 1U);
}

}  // namespace
}  // namespace rootdk::lab
