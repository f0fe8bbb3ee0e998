// rootdk plan: attention over ranks on paper. docs/scale.md has the model.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "rootdk/distributed.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

struct PlanOptions {
  std::string len = "128k";
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128, batch = 1, element_bytes = 2, window = -1;
  std::int64_t key_chunk = 1024;
  int ranks = 8;
  double link = 50, latency = 10, tflops = 500, memory = 16;
  bool causal = false, backward = false, json = false;
  std::string shares = "zigzag";
};

// "1M" is 1048576.
std::int64_t parse_length(const std::string& text) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  const std::int64_t factor = unit.empty() ? 1 : unit == "k" || unit == "K" ? 1024 : unit == "M" ? 1024 * 1024 : 0;
  require(used > 0 && factor > 0 && value >= 1 && value <= (std::int64_t{1} << 31) / factor, "plan: --len ", text,
          " is not a length such as 4096, 128k or 1M");
  return value * factor;
}

void run_plan(const PlanOptions& o) {
  const std::int64_t len = parse_length(o.len);
  require(o.link > 0 && o.tflops > 0 && o.latency >= 0 && o.memory > 0, "plan: --link ", o.link, ", --tflops ",
          o.tflops, ", --latency ", o.latency, " and --memory ", o.memory, " must be positive");
  DistributedParams params{.key_chunk = o.key_chunk};
  params.queries = o.shares == "zigzag"    ? zigzag_shares(len, o.ranks)
                   : o.shares == "striped" ? striped_shares(len, o.ranks, o.key_chunk)
                                           : contiguous_shares(len, o.ranks);
  params.rates = {.flops = o.tflops * 1e12,
                  .link_bytes = o.link * 1e9,
                  .link_latency = o.latency * 1e-6,
                  .memory_bytes = o.memory * 0x1p30};
  AttentionParams attention;
  attention.causal = o.causal;
  attention.window_left = o.window;
  const DistributedShape shape{.batch = o.batch,
                               .heads = o.heads,
                               .kv_heads = o.kv_heads,
                               .head_dim = o.head_dim,
                               .value_dim = o.head_dim,
                               .q_len = len,
                               .kv_len = len,
                               .element_bytes = o.element_bytes,
                               .backward = o.backward};
  const DistributedExplanation plan = explain_distributed(shape, params, attention);
  require(plan.error.empty(), plan.error);
  if (o.json) {
    nlohmann::ordered_json schemes = nlohmann::ordered_json::array();
    for (const SchemeCost& cost : plan.schemes) {
      schemes.push_back({{"scheme", name_of(cost.scheme)},
                         {"refusal", cost.refusal},
                         {"compute_seconds", cost.compute_seconds},
                         {"waiting_seconds", cost.waiting_seconds},
                         {"transfer_seconds", cost.transfer_seconds},
                         {"total_seconds", cost.total_seconds},
                         {"efficiency", cost.efficiency},
                         {"sent_bytes", cost.sent_bytes},
                         {"buffer_bytes", cost.buffer_bytes}});
    }
    const nlohmann::ordered_json json = {
        {"ranks", o.ranks}, {"len", len}, {"chosen", name_of(plan.chosen)}, {"schemes", schemes}};
    std::puts(json.dump().c_str());
    return;
  }
  std::printf("%d ranks, %lld tokens, %s%s: %s\n", o.ranks, static_cast<long long>(len), o.shares.c_str(),
              o.backward ? ", backward" : "", name_of(plan.chosen));
  Table table(1);
  table.add({"scheme", "compute", "waiting", "transfer", "total", "efficiency", "sent", "buffers"});
  for (const SchemeCost& cost : plan.schemes) {
    if (!cost.refusal.empty()) {
      table.add({name_of(cost.scheme), cost.refusal});
      continue;
    }
    table.add({name_of(cost.scheme), format("%.3f ms", 1e3 * cost.compute_seconds),
               format("%.3f ms", 1e3 * cost.waiting_seconds), format("%.3f ms", 1e3 * cost.transfer_seconds),
               format("%.3f ms", 1e3 * cost.total_seconds), format("%.2f", cost.efficiency),
               format("%.1f MiB", cost.sent_bytes / 0x1p20), format("%.1f MiB", cost.buffer_bytes / 0x1p20)});
  }
  std::fputs(table.text().c_str(), stdout);
}

}  // namespace

void add_plan_command(Command& program) {
  Command* verb =
      program.add_subcommand("plan", "Attention over ranks on paper: time, transfer and memory of each scheme");
  auto options = std::make_shared<PlanOptions>();
  PlanOptions& o = *options;
  verb->add_option("--ranks", o.ranks, "Ranks")->between(1, 4096)->type_name("N")->show_default();
  verb->add_option("--len", o.len, "Tokens: 4096, 128k, 1M")->type_name("N")->show_default();
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    verb->add_option(name, value, help)->between(1, 1 << 20)->type_name("N")->show_default();
  };
  size("--heads", o.heads, "Query heads");
  size("--kv-heads", o.kv_heads, "Key heads");
  size("--head-dim", o.head_dim, "Size of a query, a key and a value");
  size("--batch", o.batch, "Sequences");
  size("--element-bytes", o.element_bytes, "Bytes of an element");
  size("--key-chunk", o.key_chunk, "Keys of a chunk");
  verb->add_option("--window", o.window, "Keys that a query sees to its left (default: all)")
      ->between(0, std::int64_t{1} << 31)
      ->type_name("N");
  verb->add_option("--shares", o.shares, "Which rows a rank has (default: zigzag)")
      ->one_of({"contiguous", "zigzag", "striped"});
  verb->add_option("--link", o.link, "GB a second that a rank sends while it receives as many")
      ->type_name("GB/S")
      ->show_default();
  verb->add_option("--latency", o.latency, "Microseconds a message")->type_name("US")->show_default();
  verb->add_option("--tflops", o.tflops, "TFLOP/s of a rank in attention")->type_name("X")->show_default();
  verb->add_option("--memory", o.memory, "GiB that a rank may take beside its tensors")
      ->type_name("GIB")
      ->show_default();
  verb->add_flag("--causal", o.causal, "Keys up to the query's position");
  verb->add_flag("--backward", o.backward, "The backward pass");
  verb->add_flag("--json", o.json, "Print one JSON object");
  verb->callback([options] { run_plan(*options); });
}

}  // namespace rootdk::tools
