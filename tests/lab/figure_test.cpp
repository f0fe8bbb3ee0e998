#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "core/check.h"
#include "lab/report/figure_svg.h"
#include "lab/report/page.h"
#include "markup.h"

namespace rootdk::lab {
namespace {

// Every point of every line lies inside the drawing.
void expect_points_inside(const std::string& drawing) {
  static const std::regex kBox("viewBox=\"0 0 ([0-9.]+) ([0-9.]+)\""), kPoint("([-0-9.e]+),([-0-9.e]+) ");
  std::smatch box;
  ASSERT_TRUE(std::regex_search(drawing, box, kBox));
  const double width = std::stod(box[1]), height = std::stod(box[2]);
  for (std::sregex_iterator it(drawing.begin(), drawing.end(), kPoint), end; it != end; ++it) {
    const double x = std::stod((*it)[1]), y = std::stod((*it)[2]);
    EXPECT_TRUE(x >= 0 && x <= width && y >= 0 && y <= height) << x << ", " << y;
  }
}

TEST(Figures, LinesAreDrawnInside) {
  const std::string drawing = svg({.title = "a < b",
                                   .x_label = "x",
                                   .y_label = "y",
                                   .series = {{.name = "one", .x = {1, 2, 3}, .y = {-5, 0, 1e6}},
                                              {.name = "two", .x = {0, 4}, .y = {1, 2}, .markers_only = true}}});
  expect_well_formed(drawing);
  expect_points_inside(drawing);
  EXPECT_EQ(count(drawing, "<polyline"), 1);
  EXPECT_EQ(count(drawing, "<circle"), 5);
  EXPECT_EQ(count(drawing, "a &lt; b"), 3);
}

TEST(Figures, LogarithmsLeaveOutWhatTheyCannotShow) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const std::string drawing =
      svg({.title = "t",
           .log_x = true,
           .log_y = true,
           .series = {{.name = "s", .x = {0, 1, 10, 100, 1000}, .y = {1, nan, 10, infinity, 1000}}}});
  EXPECT_EQ(count(drawing, "<circle"), 2);
  EXPECT_EQ(count(drawing, "nan") + count(drawing, "inf"), 0);
}

TEST(Figures, BarsAndHeatMaps) {
  const std::string bars = svg({.kind = Figure::Kind::bars,
                                .title = "t",
                                .series = {{.name = "s", .x = {0, 1}, .y = {1, 1016.4}}},
                                .column_labels = {"left", "right"}});
  expect_well_formed(bars);
  EXPECT_EQ(count(bars, "<rect class=\"bar"), 2);
  EXPECT_EQ(count(bars, ">right<"), 1);
  EXPECT_EQ(count(bars, ">1016<"), 1);
  const std::string map = svg({.kind = Figure::Kind::heat_map, .title = "t", .matrix = {{1, -2, 3}, {4, 5, 6}}});
  expect_well_formed(map);
  EXPECT_EQ(count(map, "class=\"cell"), 6);
  EXPECT_EQ(count(map, "class=\"cell cold\""), 1);
}

// Text of the given class that the drawing holds.
std::vector<std::string> texts(const std::string& drawing, const std::string& kind) {
  const std::regex text("<text class=\"" + kind + "\"[^>]*>([^<]*)</text>");
  std::vector<std::string> found;
  for (std::sregex_iterator it(drawing.begin(), drawing.end(), text), end; it != end; ++it) found.push_back((*it)[1]);
  return found;
}

// Two heat maps with one scale show equal values alike, say what the scale is, and draw equal sums equally long.
TEST(Figures, HeatMapsThatAreComparedShareTheirScale) {
  Figure weak{.kind = Figure::Kind::heat_map, .title = "weak", .matrix = {{0.5, 0.5}, {0.25, 0.75}}};
  Figure strong{.kind = Figure::Kind::heat_map, .title = "strong", .matrix = {{1, 0}, {0.5, 0.5}}};
  for (Figure* figure : {&weak, &strong}) {
    figure->full_colour = 1;
    figure->show_sums = true;
    figure->longest_sum = 2;
  }
  const std::string drawings[] = {svg(weak), svg(strong)};
  for (const std::string& drawing : drawings) {
    expect_well_formed(drawing);
    EXPECT_EQ(texts(drawing, "tick"), (std::vector<std::string>{"0", "1"})) << "the ends of the legend";
    EXPECT_EQ(count(drawing, "height=\"87.5\"><title>row"), 2);
    EXPECT_EQ(count(drawing, "width=\"18\" height=\"87.5\"><title>row"), 2) << "rows that sum to 1";
  }
  EXPECT_EQ(count(drawings[0], "fill-opacity=\"0.5\"><title>"), 2);
  EXPECT_EQ(count(drawings[1], "fill-opacity=\"0.5\"><title>"), 2);
  weak.root_shade = true;
  EXPECT_EQ(count(svg(weak), "fill-opacity=\"0.5\"><title>1, 0"), 1) << "the root of a quarter";
}

TEST(Figures, LogarithmicAxesHaveTicks) {
  // Two octaves of x, whose values are the ticks, and less than a decade of y.
  const std::string drawing = svg({.title = "t",
                                   .log_x = true,
                                   .log_y = true,
                                   .series = {{.name = "s", .x = {1024, 2048, 4096}, .y = {4.2, 5.1, 7.9}}}});
  const std::vector<std::string> ticks = texts(drawing, "tick");
  for (const char* expected : {"1024", "2048", "4096"})
    EXPECT_EQ(std::count(ticks.begin(), ticks.end(), expected), 1) << expected;
  EXPECT_GE(ticks.size(), 6U) << "three of each axis at least";
}

TEST(Figures, NothingToDrawIsAnError) {
  EXPECT_THROW(svg({.title = "empty"}), Error);
  EXPECT_THROW(svg({.kind = Figure::Kind::heat_map, .title = "empty"}), Error);
}

TEST(Report, ShowsEveryVerdictAndTheLessons) {
  std::vector<Result> results;
  for (int id : {3, 12, 14}) results.push_back(measure(claim_by_id(id), Bench{.quick = true}));
  results[2].finding.verdict = Verdict::does_not_hold;
  const std::string page = report_page(results, {.seed = 7, .quick = true, .implementation = "kernel <x>"});
  EXPECT_EQ(count(page, "class=\"badge"), 3);
  EXPECT_EQ(count(page, "class=\"badge fails\""), 1);
  for (const char* id : {"claim-3", "claim-12", "claim-14", "why", "flow", "matrix", "scores", "positions"})
    EXPECT_EQ(count(page, std::string(" id=\"") + id + "\""), 1) << id;
  EXPECT_EQ(count(page, "kernel &lt;x&gt;"), 1);
  EXPECT_EQ(count(page, "http"), 0);  // nothing comes from a network
}

}  // namespace
}  // namespace rootdk::lab
