#include "lab/inspect/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lab/inspect/script.h"
#include "lab/report/html.h"
#include "lab/report/mathml.h"
#include "lab/report/style.h"

namespace rootdk::lab {
namespace {

constexpr std::size_t kShownTokens = 256;  // longer texts show the keys with the most mass instead of every token
constexpr double kFullShade = 8;           // times uniform attention: a token in full colour

std::string label_html(HeadLabel label) {
  return "<span class=\"label l" + std::to_string(static_cast<int>(label)) + "\">" + std::string(name_of(label)) +
         "</span>";
}

// A share of the weight, to two places.
std::string share_text(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.2f", share);
  return text;
}

// The label with what it rests on: "local 0.71 (uniform 0.12, 120 rows)".
std::string label_with_score(const LabelScore& label) {
  std::string html = label_html(label.label);
  if (label.label == HeadLabel::mixed) return html;
  return html + " <b>" + share_text(label.score) + "</b> <span class=\"soft\">uniform " + share_text(label.chance) +
         ", " + std::to_string(label.rows) + (label.rows == 1 ? " row" : " rows") + "</span>";
}

std::string place_of(const HeadProfile& head) {
  const std::string stack = head.stack == StackKind::main ? "" : std::string(name_of(head.stack)) + ", ";
  return stack + "layer " + std::to_string(head.layer) + ", head " + std::to_string(head.head);
}

std::string anchor_of(const HeadProfile& head) {
  return std::string(name_of(head.stack)) + '-' + std::to_string(head.layer) + '-' + std::to_string(head.head);
}

// Four significant digits are what a reader can use, and keep the page small.
std::string rounded(const std::vector<float>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    char number[24];
    std::snprintf(number, sizeof number, "%.4g", double{values[i]});
    if (i) text += ',';
    text += number;
  }
  return text + "]";
}

// JSON inside <script>: neither "</script" nor "<!--<script", which hides the end of the element, may stay.
std::string script_string(const std::vector<std::string>& texts) {
  std::string safe = "[";
  for (const std::string& text : texts) {
    if (safe.size() > 1) safe += ',';
    // One text at a time: a list of nlohmann-json takes memory in its destructor, where running out of it is the end.
    for (const char c : nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) {
      if (c == '<') {
        safe += "\\u003c";
      } else {
        safe += c;
      }
    }
  }
  return safe + "]";
}

void write_data(std::ostream& html, std::span<const Inspection> sides) {
  html << "<script>const sides = [";
  for (const Inspection& side : sides) {
    // Only maps that show every weight name tokens; pooled ones name ranges.
    const bool named = side.tokens.size() <= kShownTokens && side.encoder_tokens.size() <= kShownTokens;
    html << "{tokens: " << script_string(named ? side.tokens : std::vector<std::string>())
         << ", encoder_tokens: " << script_string(named ? side.encoder_tokens : std::vector<std::string>())
         << ", heads: [";
    for (const HeadProfile& head : side.heads) {
      html << "{rows: " << head.map_rows << ", columns: " << head.map_columns << ", query_count: " << head.rows
           << ", key_count: " << head.keys << ", query_tokens: '"
           << (head.stack == StackKind::encoder ? "encoder_tokens" : "tokens") << "', key_tokens: '"
           << (head.stack == StackKind::main ? "tokens" : "encoder_tokens") << "', map: " << rounded(head.map)
           << "},\n";
    }
    html << "]},";
  }
  html << "];" << kInspectScript << "</script>";
}

// How much a key receives for each unit that uniform attention would give it.
double times_uniform(const HeadProfile& head, std::size_t key) {
  return head.column_chance[key] > 0 ? double{head.column_mass[key]} / double{head.column_chance[key]} : 0;
}

// The text in shades of the weight that each token receives beyond uniform attention, or the tokens that receive most.
void write_column_mass(std::ostream& html, const HeadProfile& head, const std::vector<std::string>& tokens) {
  if (tokens.size() <= kShownTokens) {
    html << "<div class=\"mass\">";
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      const double times = times_uniform(head, j);
      const double depth = times > 1 ? std::min(1.0, std::log(times) / std::log(kFullShade)) : 0;
      html << "<span title=\"receives " << number(head.column_mass[j]) << ": " << number(times)
           << " times what uniform attention gives\" style=\"background:color-mix(in srgb,var(--c3) "
           << std::lround(70 * depth) << "%,transparent)\">" << escape_html(tokens[j]) << "</span>"
           << (tokens[j].starts_with(' ') ? "" : "<wbr>");
    }
    html << "</div>";
    return;
  }
  constexpr std::size_t kListed = 5;
  std::vector<std::size_t> order(tokens.size());
  for (std::size_t j = 0; j < order.size(); ++j) order[j] = j;
  std::partial_sort(order.begin(), order.begin() + kListed, order.end(),
                    [&](std::size_t a, std::size_t b) { return times_uniform(head, a) > times_uniform(head, b); });
  html << "<p class=\"soft\">Most weight for each unit of uniform attention:";
  for (std::size_t r = 0; r < kListed; ++r)
    html << (r ? ", " : " ") << order[r] << " “" << escape_html(tokens[order[r]]) << "” "
         << number(times_uniform(head, order[r])) << "×";
  html << "</p>";
}

// What every label scores, whether it is given or not.
void write_scores(std::ostream& html, const LabelScores& scores) {
  html << "<table class=\"scores\"><tr><th>label</th><th>score</th><th>uniform</th><th>rows</th></tr>";
  for (const LabelScore& score : scores) {
    if (score.rows == 0) continue;
    html << "<tr" << (score.significant ? "" : " class=\"soft\"") << "><td>" << name_of(score.label)
         << "</td><td class=\"n\">" << share_text(score.score) << (score.significant ? " *" : "")
         << "</td><td class=\"n\">" << share_text(score.chance) << "</td><td class=\"n\">" << score.rows
         << "</td></tr>";
  }
  html << "</table>";
}

void write_head(std::ostream& html, const Inspection& side, std::size_t side_index, std::size_t index) {
  const HeadProfile& head = side.heads[index];
  html << "<div class=\"panel\"><p>" << label_with_score(head.label) << "</p><canvas data-side=\"" << side_index
       << "\" data-head=\"" << index << "\" role=\"img\" aria-label=\"Attention map, " << place_of(head)
       << "\"></canvas><output>Point at the map to read a weight.</output>";
  write_scores(html, head.scores);
  html << "<dl>";
  const std::pair<const char*, double> rows[] = {{"entropy (nats)", head.entropy},
                                                 {"effective keys", head.effective_keys},
                                                 {"largest logit", head.max_logit},
                                                 {"saturated rows", head.saturation},
                                                 {"gradient left", head.gradient_left},
                                                 {"sink mass", head.sink_mass},
                                                 {"sink mass / uniform", head.sink_mass / head.sink_chance},
                                                 {"mean distance", head.mean_distance}};
  for (const auto& [name, value] : rows) {
    if (!std::isnan(value)) html << "<dt>" << name << "</dt><dd>" << number(value) << "</dd>";
  }
  html << "</dl>";
  write_column_mass(html, head, side.key_tokens(head));
  html << "</div>";
}

// What was read, up to a line or two of it.
std::string beginning_of_text(const Inspection& side) {
  constexpr std::size_t kMostBytes = 160;
  const bool answers = !side.encoder_ids.empty();
  const std::vector<std::string>& tokens = answers ? side.encoder_tokens : side.tokens;
  // Tokens bring their own spaces; where a model has no tokenizer they are numbers.
  const bool numbers = tokens.at(0) == std::to_string((answers ? side.encoder_ids : side.ids).at(0));
  std::string text;
  for (const std::string& token : tokens) {
    if (text.size() + token.size() > kMostBytes) return text + " …";
    text += numbers && !text.empty() ? " " + token : token;
  }
  return text;
}

// Layers down, heads across, each cell with its label.
void write_overview(std::ostream& html, const Inspection& side) {
  html << "<div class=\"scroll\"><table class=\"overview\"><tr><th></th>";
  const auto same_row = [&](std::size_t i, std::size_t j) {
    return side.heads[i].layer == side.heads[j].layer && side.heads[i].stack == side.heads[j].stack;
  };
  for (std::size_t i = 0; i < side.heads.size() && same_row(0, i); ++i) {
    html << "<th>head " << side.heads[i].head << "</th>";
  }
  for (std::size_t i = 0; i < side.heads.size(); ++i) {
    const HeadProfile& head = side.heads[i];
    if (i == 0 || !same_row(i - 1, i)) {
      html << "</tr><tr><th>" << (head.stack == StackKind::main ? "" : name_of(head.stack))
           << (head.stack == StackKind::main ? "layer " : " layer ") << head.layer << "</th>";
    }
    html << "<td><a href=\"#" << anchor_of(head) << "\">" << label_html(head.label.label) << "</a></td>";
  }
  html << "</tr></table></div>";
}

void write_rules(std::ostream& html, const Inspection& side) {
  html << "<details class=\"card\" open><summary>How to read this</summary><p>Rows of a map are queries, columns are "
          "keys. All maps have one scale:</p><div class=\"legend\"><span>0</span><i></i><span>1</span></div><p "
          "class=\"soft "
          "legend-ticks\">The shade is the square root of the weight, so that small weights show: 0.25 is half of full "
          "blue, 0.01 a tenth.</p><p>";
  const HeadProfile& head = side.heads.at(0);
  html << (head.map_rows == head.rows && head.map_columns == head.keys
               ? "Every cell is one exact weight. "
               : "A cell is the mean over its queries of the weight summed over its keys. ");
  html << "Entropy, effective keys (the mean of e^entropy), the largest logit, saturated rows (a weight over 0.9), "
          "gradient left (1 − Σp²) and sink mass (weight on key 0) are taken over all "
       << head.rows << " rows, inside the kernel. Distance and the scores of the labels come from the exact weights of "
       << head.sampled_rows << (head.sampled_rows == head.rows ? " rows: all of them" : " evenly spaced rows")
       << ", rows that see fewer than 8 keys (or half of a shorter text) left out. A token is shaded by how many times "
          "the weight it receives exceeds what uniform attention over the same mask would give it, from 1 (not at all) "
          "to "
       << number(kFullShade)
       << " (full); where a head attends to near tokens, these are the late ones, which few other rows "
          "see.</p><p>“Uniform” beside a score is what uniform attention over the same mask "
          "would score. A star marks a score that is significantly above it (for “broad”: above one half): the chance "
          "that any head of this model gets a star without cause is at most "
       << number(kFalseLabels) << ". A head gets a label where the score is significant and meets the rule:</p><table>";
  for (const LabelRule& rule : label_rules())
    html << "<tr><td>" << label_html(rule.label) << "</td><td>" << rule.rule << ".</td></tr>";
  html
      << "</table><p class=\"soft\">Where several of the first four rules are met, the largest difference from uniform "
         "attention wins.</p></details>";
}

void write_cards(std::ostream& html, std::span<const Inspection> sides) {
  html << "<div class=\"heads" << (sides.size() > 1 ? " pairs" : "") << "\">";
  for (const PairedHeads& pair : paired_heads(sides)) {
    const HeadProfile& head = pair[0] ? sides[0].heads[*pair[0]] : sides[1].heads[*pair[1]];
    html << "<article class=\"card\" id=\"" << anchor_of(head) << "\"><h3>" << place_of(head) << "</h3>";
    if (sides.size() > 1) html << "<div class=\"pair\">";
    for (std::size_t s = 0; s < sides.size(); ++s) {
      if (pair[s]) {
        write_head(html, sides[s], s, *pair[s]);
      } else {
        html << "<p class=\"soft\">" << (s == 0 ? "A" : "B") << " has no such head.</p>";
      }
    }
    html << (sides.size() > 1 ? "</div></article>" : "</article>");
  }
  html << "</div>";
}

}  // namespace

std::string inspection_page(std::span<const Inspection> sides) {
  std::ostringstream html;
  html.exceptions(std::ios::badbit);  // out of memory is an error, not a shorter page
  html << "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">"
          "<title>What the heads do</title><style>"
       << kStyle << kInspectStyle << "</style></head><body><main><h1>What the heads do</h1>";
  for (const Inspection& side : sides) {
    // Two texts may be read by one model: the letter and the text tell them apart.
    const char* letter = sides.size() == 1 ? "" : &side == sides.data() ? "A: " : "B: ";
    const std::size_t read = (side.encoder_ids.empty() ? side.ids : side.encoder_ids).size();
    html << "<section><h2>" << letter << escape_html(side.model) << "</h2><blockquote>"
         << escape_html(beginning_of_text(side)) << "</blockquote><p>" << escape_html(side.architecture) << ", "
         << side.parameters << " parameters; " << read << (read == 1 ? " token" : " tokens")
         << (side.encoder_ids.empty() ? "" : ", answered with " + std::to_string(side.ids.size())) << "; "
         << side.heads.size() << " heads.</p>";
    for (const std::string& warning : side.warnings)
      html << "<p class=\"warning\" role=\"note\">Warning: " << escape_html(warning) << ".</p>";
    write_overview(html, side);
    html << "</section>";
  }
  write_rules(html, sides[0]);
  html << "<section><h2>The heads" << (sides.size() > 1 ? ", side by side" : "") << "</h2>";
  write_cards(html, sides);
  html << "</section></main>";
  write_data(html, sides);
  html << "</body></html>\n";
  return html.str();
}

}  // namespace rootdk::lab
