// rootdk bench linear: products with stored weights, against the rate of plain reading and the multiply-add peak.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "layers/stored_matrix.h"
#include "tools/arguments.h"
#include "tools/bench/bench.h"
#include "tools/bench/peak.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/options.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

// By default a feed-forward of TinyLlama for one token.
struct LinearBench {
  std::int64_t rows = 1, outs = 5632, columns = 2048;
  int threads = 1, repeat = 5;
  std::string target{};
  bool json = false;

  double flops() const { return 2.0 * static_cast<double>(rows * outs * columns); }
};

struct LinearBenchResult {
  std::string_view name{};
  double seconds = 0;  // of one product, the median
  double bytes = 0;    // of the weights with their scales
};

// As many copies of a matrix as the processor's caches cannot hold: every product reads its weights from memory.
class LinearProblem {
 public:
  LinearProblem(const LinearBench& bench, WeightFormat format, bool rounds_x) : bench_(bench) {
    Executor& executor = shared_executor(bench.threads);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    x_.resize(static_cast<std::size_t>(bench.rows * bench.columns));
    for (float& x : x_) x = normal(random);
    y_.resize(static_cast<std::size_t>(bench.rows * bench.outs));
    const Tensor wide = normal_matrix(random);
    const WeightMatrix f32{.rows = bench.outs, .columns = bench.columns, .data = wide.view().data};
    constexpr double kLarge = 256 << 20;
    do {
      matrices_.push_back(made(f32, wide, format, rounds_x, executor));
      bytes_ = bytes_of_product();
    } while (bench.rows == 1 && bytes_ * static_cast<double>(matrices_.size()) < kLarge);
  }

  void run() {
    for (const auto& matrix : matrices_) {
      const LinearProduct product{.weight = matrix->matrix, .y = y_.data()};
      multiply_weights({.products = {&product, 1},
                        .rows = bench_.rows,
                        .x = x_.data(),
                        .execution = {.target = bench_.target, .cpu = {.executor = &shared_executor(bench_.threads)}}});
    }
  }
  double products() const { return static_cast<double>(matrices_.size()); }
  double bytes() const { return bytes_; }

 private:
  Tensor normal_matrix(std::mt19937& random) const {
    Tensor wide(DType::f32, {bench_.outs, bench_.columns});
    std::uniform_real_distribution<float> uniform(-0.05f, 0.05f);
    for (float& w : wide.values<float>()) w = uniform(random);
    return wide;
  }
  static std::shared_ptr<const StoredMatrix> made(const WeightMatrix& f32, const Tensor& wide, WeightFormat format,
                                                  bool rounds_x, Executor& executor) {
    if (is_integer(format)) return quantise(f32, format, executor);
    const DType types[] = {DType::f32, DType::bf16, DType::f16};
    auto copy = std::make_shared<Tensor>(convert(wide, types[static_cast<std::size_t>(format)]));
    WeightMatrix matrix = f32;
    matrix.format = format;
    matrix.rounds_x = rounds_x;
    matrix.data = copy->view().data;
    return std::make_shared<StoredMatrix>(StoredMatrix{.matrix = matrix, .owner = copy});
  }
  double bytes_of_product() const { return static_cast<double>(bytes_with_scales(matrices_.front()->matrix)); }

  LinearBench bench_;
  std::vector<float> x_, y_;
  std::vector<std::shared_ptr<const StoredMatrix>> matrices_;
  double bytes_ = 0;
};

// The formats run in turn, so that what else the machine does slows all of them alike.
class LinearMeasurement {
 public:
  explicit LinearMeasurement(const LinearBench& bench)
      : bench_(bench),
        peak_(measured_target(bench), shared_executor(bench.threads)),
        reading_(measured_target(bench), std::size_t{256} << 20, shared_executor(bench.threads)) {
    const auto add = [&](std::string_view name, WeightFormat format, bool rounds_x = false) {
      problems_.push_back(std::make_unique<LinearProblem>(bench, format, rounds_x));
      results_.push_back({.name = name, .bytes = problems_.back()->bytes()});
    };
    add("f32", WeightFormat::f32);
    add("bf16", WeightFormat::bf16);
    add("bf16, x too", WeightFormat::bf16, true);
    add("f16", WeightFormat::f16);
    add("int8", WeightFormat::i8);
    if (bench.columns % kWeightBlock == 0) add("int4", WeightFormat::i4);
    std::vector<std::vector<double>> samples(problems_.size());
    for (int i = 0; i < bench.repeat; ++i) {
      if (peak_.exists()) peak_.measure();
      reading_.measure();
      for (std::size_t p = 0; p < problems_.size(); ++p) {
        samples[p].push_back(seconds_of(bench.threads, [&] { problems_[p]->run(); }) / problems_[p]->products());
      }
    }
    for (std::size_t p = 0; p < problems_.size(); ++p) {
      std::sort(samples[p].begin(), samples[p].end());
      results_[p].seconds = samples[p][samples[p].size() / 2];
    }
  }

  nlohmann::ordered_json json(const LinearBenchResult& r) const {
    return {{"operation", "linear"},
            {"weights", r.name},
            {"rows", bench_.rows},
            {"outs", bench_.outs},
            {"columns", bench_.columns},
            {"threads", bench_.threads},
            {"seconds_median", r.seconds},
            {"gflops", 1e-9 * bench_.flops() / r.seconds},
            {"f32_peak_gflops", 1e-9 * f32_peak()},
            {"bytes_per_second", r.bytes / r.seconds},
            {"read_bytes_per_second", reading_.best()}};
  }
  void print() const {
    std::printf("%lld rows x [%lld, %lld], %d thread%s: f32 peak %.0f GFLOP/s, plain reading %.1f GB/s\n",
                static_cast<long long>(bench_.rows), static_cast<long long>(bench_.outs),
                static_cast<long long>(bench_.columns), bench_.threads, bench_.threads == 1 ? "" : "s",
                1e-9 * f32_peak(), 1e-9 * reading_.best());
    Table table(1);
    for (const LinearBenchResult& r : results_) {
      table.add(
          {std::string(r.name), format("%.3f ms", 1e3 * r.seconds),
           format("%.1f GFLOP/s, %.2f of the f32 peak", 1e-9 * bench_.flops() / r.seconds,
                  bench_.flops() / r.seconds / f32_peak()),
           format("%.1f GB/s, %.2f of reading", 1e-9 * r.bytes / r.seconds, r.bytes / r.seconds / reading_.best())});
    }
    std::fputs(table.text().c_str(), stdout);
  }
  const std::vector<LinearBenchResult>& results() const { return results_; }

 private:
  // The widest vectors of the machine, whose f32 peak is what f32 arithmetic can reach.
  static std::string_view measured_target(const LinearBench& bench) {
    const auto has_f32_peak = [](std::string_view name) {  // the peak of the others is that of bf16, or none
      return !name.ends_with("bf16") && name != "amx" && name != "avx512vnni" && name != "neondot";
    };
    if (!bench.target.empty() && has_f32_peak(bench.target)) return bench.target;
    for (const LinearImplementation& candidate : cpu::linear_implementations()) {
      if (has_f32_peak(candidate.name) && candidate.answer({}).refusal.empty()) return candidate.name;
    }
    return "";
  }
  double f32_peak() const { return peak_.exists() ? peak_.best_flops_per_second() : 0.0; }

  LinearBench bench_;
  PeakMeter peak_;
  ReadMeter reading_;
  std::vector<std::unique_ptr<LinearProblem>> problems_;
  std::vector<LinearBenchResult> results_;
};

}  // namespace

void add_linear_bench(Command& bench) {
  Command* verb = bench.add_subcommand("linear", "Products with weights of every stored type");
  auto options = std::make_shared<LinearBench>();
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    verb->add_option(name, value, help)->between(1, std::int64_t{1} << 20)->show_default()->type_name("N");
  };
  size("--rows", options->rows, "Rows of activations: tokens");
  size("--outs", options->outs, "Rows of the weights");
  size("--columns", options->columns, "Columns of the weights");
  add_threads_option(*verb, options->threads, "Threads (default: 1, timed by the processor's clock)");
  verb->add_option("--repeat", options->repeat, "Runs; the median counts")
      ->between(1, 10000)
      ->show_default()
      ->type_name("N");
  verb->add_option("--target", options->target, "Implementation to force")->type_name("NAME");
  verb->add_flag("--json", options->json, "Print a JSON object for each type");
  verb->callback([options] {
    const LinearMeasurement measured(*options);
    if (!options->json) return measured.print();
    for (const LinearBenchResult& result : measured.results()) std::puts(measured.json(result).dump().c_str());
  });
}

}  // namespace rootdk::tools
