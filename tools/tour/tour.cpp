#include "tools/tour/tour.h"

#include <algorithm>
#include <cstdio>

#include "tools/arguments.h"
#include "tools/commands.h"

namespace rootdk::tools {
namespace {

struct Section {
  const char* name;  // what the command line says
  const char* title;
  void (*show)(const Style&);
};

constexpr Section kSections[] = {
    {"sentence", "Words that attend to each other", show_sentence},
    {"scale", "Why √d_k", show_scale},
    {"statistics", "What happened inside the softmax", show_statistics},
    {"masks", "What a query may see", show_masks},
    {"speed", "The same numbers, faster", show_speed},
    {"model", "A model on the same kernels", show_model},
    {"next", "Where to go next", show_next},
};

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Section& section : kSections) names.emplace_back(section.name);
  return names;
}

void run_tour(const std::vector<std::string>& chosen) {
  const Style style = Style::of_stdout();
  int number = 0;
  if (chosen.empty()) {
    print_text(style.bold("rootdk") +
               ": scaled dot-product attention, softmax(Q Kᵀ / √d_k) V, and what happens inside it.");
  }
  for (const Section& section : kSections) {
    ++number;
    if (!chosen.empty() && std::ranges::find(chosen, section.name) == chosen.end()) continue;
    const std::string heading = for_terminal(format("── %d  %s ", number, section.title));
    std::string rule;
    for (std::size_t i = display_width(heading); i < kTourColumns; ++i) rule += "─";
    print_line("\n" + style.bold(heading) + style.dim(rule) + "\n");
    section.show(style);
    std::fflush(stdout);
  }
}

}  // namespace

void add_tour_command(Command& program) {
  Command* verb = program.add_subcommand("tour", "A one-minute tour of everything, on built-in data");
  auto sections = std::make_shared<std::vector<std::string>>();
  verb->add_option("section", *sections, "Only these sections: sentence, scale, statistics, masks, speed, model, next")
      ->one_of(section_names())
      ->type_name("NAME");
  verb->callback([sections] { run_tour(*sections); });
}

}  // namespace rootdk::tools
