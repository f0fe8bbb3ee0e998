#include "lab/report/page.h"

#include <cmath>
#include <sstream>

#include "lab/report/figure_svg.h"
#include "lab/report/html.h"
#include "lab/report/lessons.h"
#include "lab/report/mathml.h"
#include "lab/report/style.h"

namespace rootdk::lab {
namespace {

struct Mark {
  const char* style;
  const char* sign;
};

Mark mark_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::holds: return {"holds", "✓"};
    case Verdict::holds_with_a_correction: return {"correction", "≈"};
    case Verdict::does_not_hold: return {"fails", "✗"};
  }
  return {"fails", "✗"};
}

std::string measured_text(const Interval& measured) {
  std::string text = number(measured.value);
  if (measured.high > measured.low)
    text += " <span class=\"soft\">[" + number(measured.low) + ", " + number(measured.high) + "]</span>";
  return text;
}

std::string expected_text(const Finding& finding) {
  const std::string value = number(finding.expected);
  return finding.relation == Relation::equal ? value : std::string(name_of(finding.relation)) + " " + value;
}

void write_details(std::ostream& html, const Finding& finding) {
  if (finding.details.empty()) return;
  html
      << "<details" << (finding.details.size() <= 6 ? " open" : "") << "><summary>" << finding.details.size()
      << " measurements</summary><div class=\"scroll\"><table><tr><th>what</th><th>expected</th><th>measured</th></tr>";
  for (const Detail& detail : finding.details) {
    html << "<tr><td>" << escape_html(detail.setting) << "</td><td class=\"n\">" << number(detail.expected)
         << "</td><td class=\"n\">" << measured_text(detail.measured) << "</td></tr>";
  }
  html << "</table></div></details>";
}

void write_claim(std::ostream& html, const Result& result) {
  const Finding& finding = result.finding;
  const Mark mark = mark_of(finding.verdict);
  html << "<article class=\"card claim\" id=\"claim-" << result.claim.id << "\"><h3>" << result.claim.id << ". "
       << escape_html(result.claim.text) << "</h3><p><span class=\"badge " << mark.style << "\">"
       << name_of(finding.verdict) << "</span> " << mathml(result.claim.formula) << "</p><p class=\"note\">"
       << escape_html(finding.note) << "</p><p class=\"soft\">" << escape_html(finding.quantity) << ": ";
  if (!std::isnan(finding.expected)) html << "expected " << expected_text(finding) << ", ";
  html << "measured " << measured_text(finding.measured) << "</p>";
  if (!finding.setup.empty()) html << "<p class=\"soft\">Setup: " << escape_html(finding.setup) << "</p>";
  if (!finding.figures.empty()) {
    html << "<div class=\"figures\">";
    for (const Figure& figure : finding.figures) {
      html << "<figure>" << svg(figure) << "<figcaption>" << escape_html(figure.caption) << "</figcaption></figure>";
    }
    html << "</div>";
  }
  write_details(html, finding);
  html << "</article>";
}

void write_overview(std::ostream& html, std::span<const Result> results) {
  html << "<nav class=\"verdicts card\" aria-label=\"All claims\">";
  for (const Result& result : results) {
    const Mark mark = mark_of(result.finding.verdict);
    html << "<a href=\"#claim-" << result.claim.id << "\"><b class=\"" << mark.style << "-mark\">" << mark.sign
         << "</b> " << result.claim.id << ". " << escape_html(result.claim.text) << "</a>";
  }
  html << "</nav>";
}

}  // namespace

std::string report_page(std::span<const Result> results, const ReportInfo& info) {
  int counts[3] = {};
  for (const Result& result : results) ++counts[static_cast<int>(result.finding.verdict)];
  std::ostringstream html;
  html.exceptions(std::ios::badbit);  // out of memory is an error, not a shorter page
  html << "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width, initial-scale=1\">"
       << "<meta name=\"color-scheme\" content=\"light dark\"><title>Attention, measured</title><style>" << kStyle
       << "</style></head><body><main>"
       << "<h1>Attention, measured</h1><p>"
       << mathml(R"(\operatorname{attention}(Q, K, V) = \operatorname{softmax}(\frac{Q K^T}{\sqrt{d_k}}) V)", true)
       << "</p><p>" << results.size() << " claims, measured on this machine: " << counts[0] << " hold, " << counts[1]
       << " hold with a correction, " << counts[2] << " do not hold. <span class=\"soft\">Seed " << info.seed
       << (info.quick ? ", quick run" : "") << ", kernel " << escape_html(info.implementation) << ".</span></p>";
  write_overview(html, results);
  html << lesson_why_square_root() << lesson_data_flow() << lesson_attention_matrix() << lesson_three_scores()
       << lesson_position_encodings() << "<section id=\"claims\"><h2>The claims</h2>";
  for (const Result& result : results) write_claim(html, result);
  html << "</section></main></body></html>\n";
  return html.str();
}

}  // namespace rootdk::lab
