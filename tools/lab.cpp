// rootdk lab: the claims about attention, measured here.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "lab/report/page.h"
#include "lab/run.h"
#include "models/write_text.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/heap.h"
#include "tools/options.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

struct LabOptions {
  std::vector<int> only;
  std::uint64_t seed = 1;
  bool quick = false, json = false;
  std::string report;
};

// JSON has no NaN and no infinity: they become null.
nlohmann::json json_number(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

nlohmann::json to_json(const lab::Result& result) {
  const lab::Finding& finding = result.finding;
  nlohmann::json details = nlohmann::json::array();
  for (const lab::Detail& detail : finding.details) {
    details.push_back({{"setting", detail.setting},
                       {"expected", json_number(detail.expected)},
                       {"measured", json_number(detail.measured.value)},
                       {"low", json_number(detail.measured.low)},
                       {"high", json_number(detail.measured.high)}});
  }
  return {{"id", result.claim.id},
          {"claim", result.claim.text},
          {"quantity", finding.quantity},
          {"expected", json_number(finding.expected)},
          {"relation", lab::name_of(finding.relation)},
          {"measured", json_number(finding.measured.value)},
          {"low", json_number(finding.measured.low)},
          {"high", json_number(finding.measured.high)},
          {"verdict", lab::name_of(finding.verdict)},
          {"note", finding.note},
          {"setup", finding.setup},
          {"samples", finding.samples},
          {"seconds", result.seconds},
          {"details", details}};
}

// "40 s", "3 min".
std::string duration(double seconds) {
  return seconds < 90 ? format("%.0f s", std::max(1.0, seconds)) : format("%.0f min", std::ceil(seconds / 60));
}

// A line on the terminal that says what runs and how long is left, and is written over; nothing where it is no
// terminal.
class ProgressLine {
 public:
  ProgressLine(const std::vector<lab::Claim>& claims, bool quick) : claims_(claims), quick_(quick) {
    for (const lab::Claim& claim : claims) foretold_ += cost(claim);
  }

  void begin(std::size_t index) {
    {
      const std::lock_guard lock(mutex_);
      if (index > 0) behind_ += cost(claims_[index - 1]);
      index_ = index;
      share_ = 0;
    }
    show("measuring", 0);
  }

  void show(std::string_view stage, double share) {
    if (!isatty(STDERR_FILENO)) return;
    const std::lock_guard lock(mutex_);  // experiments report from several threads
    share_ = std::max(share_, share);
    const double done = behind_ + share_ * cost(claims_[index_]);
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    // What has been done tells how fast this machine is; at first the claims' own figures must do.
    const double pace = done > 1 ? elapsed / done : 1;
    std::string line =
        format("  claim %d (%zu of %zu): %.*s %.0f %%, about %s left", claims_[index_].id, index_ + 1, claims_.size(),
               static_cast<int>(stage.size()), stage.data(), 100 * share_, duration(pace * (foretold_ - done)).c_str());
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
    shown_ = true;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  double cost(const lab::Claim& claim) const { return quick_ ? claim.quick_seconds : claim.seconds; }

  const std::vector<lab::Claim>& claims_;
  const bool quick_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::size_t index_ = 0;
  double foretold_ = 0, behind_ = 0, share_ = 0;  // in foretold seconds; of the claim that runs
  bool shown_ = false;
};

void print(const lab::Result& result, const Style& style) {
  const lab::Finding& finding = result.finding;
  const std::string verdict(lab::name_of(finding.verdict));
  const std::string coloured = finding.verdict == lab::Verdict::holds                     ? style.green(verdict)
                               : finding.verdict == lab::Verdict::holds_with_a_correction ? style.yellow(verdict)
                                                                                          : style.bold(verdict);
  std::printf("%s  %s  %s\n", style.bold(format("%2d", result.claim.id)).c_str(),
              std::string(result.claim.text).c_str(), style.dim(format("%.1f s", result.seconds)).c_str());
  std::printf("    %s: ", finding.quantity.c_str());
  if (!std::isnan(finding.expected)) {
    const std::string relation =
        finding.relation == lab::Relation::equal ? "" : std::string(lab::name_of(finding.relation)) + " ";
    std::printf("expected %s%.4g, ", relation.c_str(), finding.expected);
  }
  std::printf("measured %.4g", finding.measured.value);
  if (finding.measured.high > finding.measured.low)
    std::printf(" [%.4g, %.4g]", finding.measured.low, finding.measured.high);
  std::printf("\n    %s. %s\n\n", coloured.c_str(), finding.note.c_str());
  std::fflush(stdout);
}

void run_lab(const LabOptions& options) {
  keep_freed_memory();
  if (!options.report.empty()) require_writable(options.report);  // now, not after minutes of measuring
  std::vector<lab::Claim> claims;
  for (int id : std::set<int>(options.only.begin(), options.only.end())) claims.push_back(lab::claim_by_id(id));
  if (claims.empty()) claims = lab::catalogue();
  const Style style = Style::of_stdout();
  std::vector<lab::Result> results;
  ProgressLine progress(claims, options.quick);
  lab::Bench bench;
  bench.seed = options.seed;
  bench.quick = options.quick;
  bench.progress = [&](std::string_view stage, double share) { progress.show(stage, share); };
  for (std::size_t index = 0; index < claims.size(); ++index) {
    progress.begin(index);
    results.push_back(lab::measure(claims[index], bench));
    progress.clear();
    if (!options.json) print(results.back(), style);
  }
  if (!options.report.empty()) {
    const lab::ReportInfo info{.seed = options.seed, .quick = options.quick, .implementation = lab::kernel_in_use()};
    write_text(options.report, lab::report_page(results, info));
  }
  if (options.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const lab::Result& result : results) all.push_back(to_json(result));
    std::printf("%s\n", all.dump(1).c_str());
  } else if (!options.report.empty()) {
    std::printf("The report: %s\n", options.report.c_str());
  }
}

}  // namespace

void add_lab_command(Command& program) {
  auto options = std::make_shared<LabOptions>();
  Command* verb = program.add_subcommand("lab", "The claims about attention, measured on this machine");
  add_numbers_option(*verb, "--only", options->only, "Measure these claims alone, by number");
  add_seed_option(*verb, options->seed, "Seed of every random number; the same seed gives the same findings");
  verb->add_flag("--quick", options->quick, "Fewer samples and shorter training: about half a minute");
  verb->add_option("--report", options->report, "Write one self-contained HTML page here")->type_name("FILE");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options] { run_lab(*options); });
}

}  // namespace rootdk::tools
