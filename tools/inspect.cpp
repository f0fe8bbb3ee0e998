// rootdk inspect MODEL: what every head of a checkpoint does on a text.

#include <cmath>
#include <cstdio>
#include <memory>

#include "core/check.h"
#include "lab/inspect/json.h"
#include "lab/inspect/page.h"
#include "models/write_text.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/terminal.h"
#include "tools/text_file.h"

namespace rootdk::tools {
namespace {

struct InspectVerb {
  std::string model, prompt, text, report, other_model, other_prompt;
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> layers, heads;
  bool has_prompt = false, json = false;  // a prompt may be empty: the model then begins with its first token
  int threads = 0;
};

std::vector<std::int32_t> ids_of(const InspectVerb& options, const LoadedModel& subject) {
  if (!options.ids.empty()) return options.ids;
  return subject.ids_of(options.text.empty() ? options.prompt : read_text_file(options.text));
}

std::string cell(double value, const char* pattern) { return std::isnan(value) ? "-" : format(pattern, value); }

// Every head that any side has, those of the first side first: grouped by label, the clearest of each group first.
struct HeadPair {
  const lab::HeadProfile* sides[2] = {nullptr, nullptr};
  const lab::HeadProfile& any() const { return *(sides[0] ? sides[0] : sides[1]); }
};
std::vector<HeadPair> head_pairs(const std::vector<lab::Inspection>& sides) {
  std::vector<HeadPair> pairs;
  for (const lab::PairedHeads& pair : lab::paired_heads(sides)) {
    HeadPair& heads = pairs.emplace_back();
    for (std::size_t s = 0; s < sides.size(); ++s) {
      if (pair[s]) heads.sides[s] = &sides[s].heads[*pair[s]];
    }
  }
  return pairs;
}

void print_titles(const std::vector<lab::Inspection>& sides, const Style& style) {
  for (std::size_t s = 0; s < sides.size(); ++s) {
    std::printf("%s%s: %s, %lld parameters, %zu token%s, %zu heads\n", sides.size() > 1 ? (s ? "B  " : "A  ") : "",
                sides[s].model.c_str(), sides[s].architecture.c_str(), static_cast<long long>(sides[s].parameters),
                sides[s].ids.size(), sides[s].ids.size() == 1 ? "" : "s", sides[s].heads.size());
    for (const std::string& warning : sides[s].warnings)
      std::printf("%s\n", style.yellow("warning: " + warning).c_str());
  }
  std::printf("\n");
}

void print(const std::vector<lab::Inspection>& sides, const Style& style) {
  print_titles(sides, style);
  const bool two = sides.size() > 1;
  Table table(two ? 3 : 2);
  std::vector<std::string> heading = {"label", "head"};
  if (two) heading.insert(heading.begin() + 1, "label B");
  struct Column {
    const char* title;
    const char* pattern;
    double (*value)(const lab::HeadProfile&);
  };
  using Head = lab::HeadProfile;
  const Column kColumns[] = {
      {"score", "%.2f", [](const Head& h) { return h.label.rows > 0 ? h.label.score : std::nan(""); }},
      {"chance", "%.2f", [](const Head& h) { return h.label.chance; }},
      {"rows", "%.0f",
       [](const Head& h) { return h.label.rows > 0 ? static_cast<double>(h.label.rows) : std::nan(""); }},
      {"entropy", "%.2f", [](const Head& h) { return h.entropy; }},
      {"keys", "%.1f", [](const Head& h) { return h.effective_keys; }},
      {"logit", "%.2f", [](const Head& h) { return h.max_logit; }},
      {"sat.", "%.2f", [](const Head& h) { return h.saturation; }},
      {"grad.", "%.3f", [](const Head& h) { return h.gradient_left; }},
      {"sink", "%.2f", [](const Head& h) { return h.sink_mass; }},
      {"unif.", "%.2f", [](const Head& h) { return h.sink_chance; }},
      {"dist.", "%.1f", [](const Head& h) { return h.mean_distance; }}};
  for (const Column& column : kColumns) {
    heading.emplace_back(column.title);
    if (two) heading.emplace_back("B");
  }
  for (std::string& text : heading) text = style.bold(text);
  table.add(heading);
  for (const HeadPair& pair : head_pairs(sides)) {
    const lab::HeadProfile& head = pair.any();
    std::vector<std::string> row;
    for (std::size_t s = 0; s < sides.size(); ++s)
      row.emplace_back(pair.sides[s] ? lab::name_of(pair.sides[s]->label.label) : "-");
    row.push_back(format("%s%lld.%lld",
                         head.stack == StackKind::main ? "" : (std::string(lab::name_of(head.stack)) + " ").c_str(),
                         static_cast<long long>(head.layer), static_cast<long long>(head.head)));
    for (const Column& column : kColumns) {
      for (std::size_t s = 0; s < sides.size(); ++s)
        row.push_back(pair.sides[s] ? cell(column.value(*pair.sides[s]), column.pattern) : "-");
    }
    table.add(row);
  }
  std::fputs(table.text("").c_str(), stdout);
  std::printf("\n");
  for (const lab::LabelRule& rule : lab::label_rules()) {
    std::printf("%s\n", style
                            .dim(format("%-14.*s  %.*s", static_cast<int>(rule.name.size()), rule.name.data(),
                                        static_cast<int>(rule.rule.size()), rule.rule.data()))
                            .c_str());
  }
  std::printf(
      "%s\n",
      style
          .dim("chance, unif.: what uniform attention over the same keys would give, to the label's keys and to "
               "the sink.\nA label needs a score that is significant after correction for all heads: "
               "docs/lab.md has the test.")
          .c_str());
}

void run_inspect(const InspectVerb& options) {
  const int given = options.has_prompt + !options.text.empty() + !options.ids.empty();
  require(given == 1, "inspect: give one of --prompt, --text and --ids, got ", given);
  if (!options.report.empty()) require_writable(options.report);
  const lab::InspectOptions inspect{.layers = options.layers,
                                    .heads = options.heads,
                                    .executor = options.threads > 0 ? &shared_executor(options.threads) : nullptr};
  const LoadedModel subject = LoadedModel::load(options.model);
  const bool two = !options.other_model.empty() || !options.other_prompt.empty();
  const auto inspected = [&](const LoadedModel& model, const std::vector<std::int32_t>& ids) {
    return lab::inspect(model, ids,
                        options.report.empty() ? inspect : lab::for_page(inspect, model, ids.size(), two ? 0.5 : 1.0));
  };
  std::vector<lab::Inspection> sides{inspected(subject, ids_of(options, subject))};
  if (!options.other_model.empty()) {
    const LoadedModel other = LoadedModel::load(options.other_model);
    sides.push_back(
        inspected(other, options.other_prompt.empty() ? ids_of(options, other) : other.ids_of(options.other_prompt)));
  } else if (two) {
    sides.push_back(inspected(subject, subject.ids_of(options.other_prompt)));
  }
  if (!options.report.empty()) write_text(options.report, lab::inspection_page(sides));
  if (options.json) {
    std::puts(lab::inspection_json(sides).c_str());
    return;
  }
  print(sides, Style::of_stdout());
  if (!options.report.empty()) std::printf("\nThe report: %s\n", options.report.c_str());
}

}  // namespace

void add_inspect_command(Command& program) {
  Command* verb = program.add_subcommand("inspect", "What every head of a checkpoint does on a text");
  auto options = std::make_shared<InspectVerb>();
  verb->add_option("MODEL", options->model, "Folder with config.json, model.safetensors and tokenizer.json; or builtin")
      ->required();
  Option* prompt = verb->add_option("--prompt", options->prompt, "The text")->type_name("TEXT");
  verb->add_option("--text", options->text, "A file with the text")->type_name("FILE");
  add_numbers_option(*verb, "--ids", options->ids, "Token ids instead of a text");
  add_numbers_option(*verb, "--layers", options->layers, "Only these layers")->type_name("0,1");
  add_numbers_option(*verb, "--heads", options->heads, "Only these heads")->type_name("0,1");
  verb->add_option("--compare", options->other_model, "Another checkpoint to compare with")->type_name("MODEL");
  verb->add_option("--compare-prompt", options->other_prompt, "Another text to compare with")->type_name("TEXT");
  add_threads_option(*verb, options->threads);
  verb->add_option("--report", options->report, "Write one self-contained HTML page here")->type_name("FILE");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, prompt] {
    options->has_prompt = prompt->count() > 0;
    run_inspect(*options);
  });
}

}  // namespace rootdk::tools
