#include "conformance/fixtures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "support/safetensors_file.h"

namespace rootdk::test {
namespace {

AttentionParams read_scalars(const std::string& json) {
  auto number = [&](const char* key) { return std::stod(json_field(json, key)); };
  AttentionParams p;
  const std::string score = json_field(json, "score");
  require(score == "dot" || score == "cosine" || score == "additive", "fixture: score ", score);
  p.score = score == "dot" ? Score::dot : score == "cosine" ? Score::cosine : Score::additive;
  p.logits.scale = number("scale");
  p.logits.temperature = number("temperature");
  p.logits.softcap = number("softcap");
  p.causal = json_field(json, "causal") == "true";
  p.window_left = std::stoll(json_field(json, "window_left"));
  p.window_right = std::stoll(json_field(json, "window_right"));
  return p;
}

Fixture load(const std::filesystem::path& path) {
  SafetensorsFile file = read_safetensors(path.string());
  Fixture fixture;
  AttentionCase& c = fixture.problem;
  c.name = "fixture " + path.stem().string();
  c.scalars = read_scalars(file.metadata.at("case"));
  for (auto [name, field] : {std::pair{"q", &AttentionCase::q}, std::pair{"k", &AttentionCase::k},
                             std::pair{"v", &AttentionCase::v}, std::pair{"grad_out", &AttentionCase::grad_out}}) {
    c.*field = DataTensor(file.tensors.at(name), false);
  }
  for (auto [name, field] :
       {std::pair{"bias", &AttentionCase::bias}, std::pair{"alibi_slopes", &AttentionCase::alibi_slopes},
        std::pair{"kv_lengths", &AttentionCase::kv_lengths}, std::pair{"sinks", &AttentionCase::sinks},
        std::pair{"additive_v", &AttentionCase::additive_v}}) {
    if (file.tensors.contains(name)) c.*field = std::move(file.tensors.at(name));
  }
  for (auto& [name, tensor] : file.tensors) {
    if (!tensor.defined()) continue;
    if (name == "stats_max_p") {
      fixture.results.emplace("max_weight", std::move(tensor));
    } else if (name.starts_with("stats_")) {
      fixture.results.emplace(name.substr(6), std::move(tensor));
    } else if (name == "out" || (name.starts_with("grad_") && name != "grad_out")) {
      fixture.results.emplace(name, std::move(tensor));
    }
  }
  return fixture;
}

// Returns how many results of the file were compared.
int expect_results(const Fixture& fixture, const Results& actual) {
  int compared = 0;
  for (const auto& [name, tensor] : actual) {
    const auto wanted = fixture.results.find(name);
    if (wanted == fixture.results.end()) continue;
    const Difference d = difference(wanted->second, tensor);
    // Cosine scores of head_dim 1 have no gradient: the file holds the noise of float64, compared absolutely.
    const double allowed = d.magnitude < 1e-14 ? 1e-6 : 1e-5 * d.magnitude;
    EXPECT_LE(d.largest, allowed) << fixture.problem.name << ": " << name << " at element " << d.where;
    ++compared;
  }
  return compared;
}

}  // namespace

const std::vector<Fixture>& load_fixtures() {
  static const std::vector<Fixture> fixtures = [] {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(ROOTDK_TEST_DATA "/attention")) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    std::vector<Fixture> all;
    for (const auto& path : paths) all.push_back(load(path));
    return all;
  }();
  return fixtures;
}

void expect_fixture(const Fixture& fixture, const Target& target, ConformanceReport& report) {
  const AttentionCase& c = fixture.problem;
  Statistics statistics = Statistics::all;
  std::string refusal = forward_refusal(c, target, statistics);
  if (!refusal.empty()) {
    report.refused.push_back(c.name + ", forward with all statistics: " + refusal);
    statistics = Statistics::rows;
    refusal = forward_refusal(c, target, statistics);
  }
  if (!refusal.empty()) {
    report.refused.push_back(c.name + ", forward with row statistics: " + refusal);
    return;
  }
  const Results forward = run_forward(c, target, statistics);
  EXPECT_GE(expect_results(fixture, forward), statistics == Statistics::all ? 7 : 6) << c.name;
  ++report.forward_runs;
  refusal = backward_refusal(c, forward, target);
  if (!refusal.empty()) {
    report.refused.push_back(c.name + ", backward: " + refusal);
    return;
  }
  EXPECT_GE(expect_results(fixture, run_backward(c, forward, target)), 3) << c.name;
  ++report.backward_runs;
}

}  // namespace rootdk::test
