// The experiments of the lab, one at a time.

#include <cmath>

#include "lab/report/figure_svg.h"
#include "lab/report/mathml.h"
#include "lab/run.h"
#include "session.h"

namespace rootdk::live {
namespace {

Json number(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

Json interval(const lab::Interval& measured) {
  return {number(measured.value), number(measured.low), number(measured.high)};
}

}  // namespace

Answer claim_list() {
  Answer answer;
  Json list = Json::array();
  for (const lab::Claim& claim : lab::catalogue()) {
    list.push_back({{"id", claim.id}, {"text", claim.text}, {"formula", lab::mathml(claim.formula)}});
  }
  answer.json["claims"] = std::move(list);
  return answer;
}

Answer claim(const Json& request) {
  lab::Bench bench;
  bench.seed = request.value("seed", std::uint64_t{1});
  bench.quick = request.value("quick", true);
  const lab::Result result = lab::measure(lab::claim_by_id(request.at("id").get<int>()), bench);
  const lab::Finding& finding = result.finding;
  Json details = Json::array(), figures = Json::array();
  for (const lab::Detail& detail : finding.details) {
    details.push_back(
        {{"setting", detail.setting}, {"expected", number(detail.expected)}, {"measured", interval(detail.measured)}});
  }
  for (const lab::Figure& figure : finding.figures) {
    figures.push_back({{"svg", lab::svg(figure)}, {"caption", figure.caption}});
  }
  Answer answer;
  answer.json = {{"id", result.claim.id},
                 {"claim", result.claim.text},
                 {"seed", bench.seed},
                 {"quantity", finding.quantity},
                 {"expected", number(finding.expected)},
                 {"relation", lab::name_of(finding.relation)},
                 {"measured", interval(finding.measured)},
                 {"verdict", lab::name_of(finding.verdict)},
                 {"note", finding.note},
                 {"samples", finding.samples},
                 {"seconds", result.seconds},
                 {"details", std::move(details)},
                 {"figures", std::move(figures)}};
  return answer;
}

}  // namespace rootdk::live
