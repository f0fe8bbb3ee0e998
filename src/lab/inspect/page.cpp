#include "lab/inspect/page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <sstream>

#include "lab/inspect/json_writer.h"
#include "lab/live/assets.h"
#include "lab/live/one_file.h"
#include "lab/report/html.h"
#include "lab/report/style.h"

namespace rootdk::lab {
namespace {

constexpr std::size_t kNamedTokens = 256;  // longer texts show cells of tokens, and the keys with the most weight
constexpr double kFullShade = 8;           // times uniform attention: a token in full colour

// All floats of the page, one list after the other; the JSON beside it says where each begins.
class Numbers {
 public:
  std::size_t add(const std::vector<float>& values) {
    const std::size_t at = count_;
    count_ += values.size();
    for (const float value : values) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
    }
    return at;
  }
  // Once, however many heads share it.
  std::size_t add_shared(const HeadOperands::Matrix& values) {
    const auto known = shared_.find(values.get());
    if (known != shared_.end()) return known->second;
    return shared_[values.get()] = add(*values);
  }
  std::string text() const { return base64(bytes_); }

 private:
  std::string bytes_;
  std::size_t count_ = 0;
  std::map<const void*, std::size_t> shared_;
};

// How much a key receives for each unit that uniform attention would give it.
double times_uniform(const HeadProfile& head, std::size_t key) {
  return head.column_chance[key] > 0 ? double{head.column_mass[key]} / double{head.column_chance[key]} : 0;
}

void write_operands(JsonWriter& json, const HeadOperands& operands, Numbers& numbers) {
  const LogitRules& rules = operands.rules;
  json.name("operands");
  json.open('{');
  json.member("head_dim", operands.head_dim);
  json.member("value_dim", operands.value_dim);
  json.member("q", numbers.add(operands.q));
  json.member("k", numbers.add_shared(operands.k));
  json.member("v", numbers.add_shared(operands.v));
  json.name("rules");
  json.open('{');
  json.member("scale", rules.scale);
  json.member("softcap", rules.softcap);
  json.member("slope", rules.slope);
  json.member("causal", rules.causal);
  json.member("window_left", rules.window_left);
  json.member("window_right", rules.window_right);
  if (rules.sink) json.member("sink", *rules.sink);
  if (!rules.relative.empty()) {
    json.list("relative", rules.relative);
    json.member("relative_zero", rules.relative_zero);
  }
  json.close('}');
  json.close('}');
}

// The weight that each token receives, or the tokens that receive most for each unit of uniform attention.
void write_mass(JsonWriter& json, const HeadProfile& head, const std::vector<std::string>& tokens, Numbers& numbers) {
  if (tokens.size() <= kNamedTokens) {
    json.member("mass", numbers.add(head.column_mass));
    json.member("mass_chance", numbers.add(head.column_chance));
    return;
  }
  constexpr std::size_t kListed = 5;
  std::vector<std::size_t> order(tokens.size());
  for (std::size_t j = 0; j < order.size(); ++j) order[j] = j;
  std::partial_sort(order.begin(), order.begin() + kListed, order.end(),
                    [&](std::size_t a, std::size_t b) { return times_uniform(head, a) > times_uniform(head, b); });
  json.name("most");
  json.open('[');
  for (std::size_t r = 0; r < kListed; ++r) {
    json.next();
    json.open('{');
    json.member("key", order[r]);
    json.member("text", tokens[order[r]]);
    json.member("times", times_uniform(head, order[r]));
    json.close('}');
  }
  json.close(']');
}

void write_score(JsonWriter& json, const LabelScore& score) {
  json.open('{');
  json.member("label", name_of(score.label));
  json.member("score", number_or_null(score.score));
  json.member("chance", number_or_null(score.chance));
  json.member("rows", score.rows);
  json.member("significant", score.significant);
  json.close('}');
}

void write_head(JsonWriter& json, const Inspection& side, const HeadProfile& head, Numbers& numbers) {
  json.open('{');
  json.member("stack", name_of(head.stack));
  const std::pair<const char*, std::int64_t> counts[] = {{"layer", head.layer},       {"head", head.head},
                                                         {"queries", head.rows},      {"keys", head.keys},
                                                         {"map_rows", head.map_rows}, {"map_columns", head.map_columns},
                                                         {"rows", head.label.rows},   {"sampled", head.sampled_rows}};
  for (const auto& [name, count] : counts) json.member(name, count);
  json.member("label", name_of(head.label.label));
  const std::pair<const char*, double> values[] = {{"score", head.label.score},
                                                   {"chance", head.label.chance},
                                                   {"entropy", head.entropy},
                                                   {"effective_keys", head.effective_keys},
                                                   {"max_logit", head.max_logit},
                                                   {"saturation", head.saturation},
                                                   {"gradient_left", head.gradient_left},
                                                   {"sink", head.sink_mass},
                                                   {"sink_chance", head.sink_chance},
                                                   {"mean_distance", head.mean_distance}};
  for (const auto& [name, value] : values) json.member(name, number_or_null(value));
  json.name("scores");
  json.open('[');
  for (const LabelScore& score : head.scores) {
    if (score.rows == 0) continue;
    json.next();
    write_score(json, score);
  }
  json.close(']');
  json.member("map", numbers.add(head.map));
  write_mass(json, head, side.key_tokens(head), numbers);
  if (head.operands) write_operands(json, *head.operands, numbers);
  json.close('}');
}

// How the text of each of `cells` equal stretches begins.
std::vector<std::string> beginnings(const std::vector<std::string>& tokens, std::size_t cells) {
  constexpr std::size_t kShown = 24;
  std::vector<std::string> texts;
  for (std::size_t cell = 0; cell < cells; ++cell) {
    std::string text;
    for (std::size_t i = cell * tokens.size() / cells; i < (cell + 1) * tokens.size() / cells; ++i) {
      if (text.size() >= kShown) break;
      text += tokens[i];
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

bool is_pooled(const HeadProfile& head) { return head.map_rows < head.rows || head.map_columns < head.keys; }

// The first head whose map is pooled, or the first of all: stacks of a model have different lengths.
const HeadProfile& pooled_or_first(const Inspection& side) {
  const auto pooled = std::ranges::find_if(side.heads, is_pooled);
  return pooled == side.heads.end() ? side.heads.at(0) : *pooled;
}

// What the page has no room for, as sentences.
std::vector<std::string> left_out(const Inspection& side) {
  std::vector<std::string> notes;
  const HeadProfile& head = pooled_or_first(side);
  if (is_pooled(head))
    notes.push_back("The maps have " + std::to_string(head.map_rows) + " × " + std::to_string(head.map_columns) +
                    " cells for " + std::to_string(head.rows) + " × " + std::to_string(head.keys) +
                    " weights: a cell is the mean over its queries of the weight summed over its keys");
  const auto with = std::ranges::count_if(side.heads, [](const HeadProfile& h) { return h.operands != nullptr; });
  if (with == static_cast<std::ptrdiff_t>(side.heads.size())) return notes;
  const std::size_t longest = std::max(side.tokens.size(), side.encoder_tokens.size());
  if (longest > std::size_t{kOperandTokens}) {
    notes.push_back("“One row, computed” is left out: the page keeps q, k and v of texts up to " +
                    std::to_string(kOperandTokens) + " tokens, and this one has " + std::to_string(longest));
  } else if (with > 0) {
    notes.push_back("“One row, computed” has " + std::to_string(with) + " of " + std::to_string(side.heads.size()) +
                    " heads, the clearest labels first: the page has no room for q, k and v of all. --layers and "
                    "--heads choose others");
  } else {
    notes.emplace_back("“One row, computed” is left out: q, k and v were not kept");
  }
  return notes;
}

void write_side(JsonWriter& json, const Inspection& side, Numbers& numbers) {
  json.open('{');
  json.member("model", side.model);
  for (const auto& [name, tokens] : {std::pair("tokens", &side.tokens), {"encoder_tokens", &side.encoder_tokens}}) {
    json.list(name, tokens->size() <= kNamedTokens ? *tokens : std::vector<std::string>());
  }
  // The cells of a stack's queries and keys: the maps of its heads have the same.
  json.name("cells");
  json.open('{');
  for (std::size_t i = 0; i < side.heads.size(); ++i) {
    const HeadProfile& head = side.heads[i];
    if ((i > 0 && side.heads[i - 1].stack == head.stack) ||
        (head.map_rows == head.rows && head.map_columns == head.keys)) {
      continue;
    }
    json.name(name_of(head.stack));
    json.open('{');
    json.list("queries", beginnings(side.query_tokens(head), static_cast<std::size_t>(head.map_rows)));
    json.list("keys", beginnings(side.key_tokens(head), static_cast<std::size_t>(head.map_columns)));
    json.close('}');
  }
  json.close('}');
  json.list("left_out", left_out(side));
  json.name("heads");
  json.open('[');
  for (const HeadProfile& head : side.heads) {
    json.next();
    write_head(json, side, head, numbers);
  }
  json.close(']');
  json.close('}');
}

std::string data_json(std::span<const Inspection> sides, Numbers& numbers) {
  JsonWriter json(false);
  json.open('{');
  json.member("full_shade", kFullShade);
  json.name("rules");
  json.open('[');
  for (const LabelRule& rule : label_rules()) {
    json.next();
    json.open('{');
    json.member("name", rule.name);
    json.member("rule", rule.rule);
    json.close('}');
  }
  json.close(']');
  json.name("sides");
  json.open('[');
  for (const Inspection& side : sides) {
    json.next();
    write_side(json, side, numbers);
  }
  json.close(']');
  json.close('}');
  return json_inside_script(json.take());
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

void write_summary(std::ostream& html, std::span<const Inspection> sides) {
  for (const Inspection& side : sides) {
    // Two texts may be read by one model: the letter and the text tell them apart.
    const char* letter = sides.size() == 1 ? "" : &side == sides.data() ? "A: " : "B: ";
    const std::size_t read = (side.encoder_ids.empty() ? side.ids : side.encoder_ids).size();
    html << "<section><h2>" << letter << escape_html(side.model) << "</h2><blockquote>"
         << escape_html(beginning_of_text(side)) << "</blockquote><p class=\"soft\">" << escape_html(side.architecture)
         << ", " << side.parameters << " parameters; " << read << (read == 1 ? " token" : " tokens")
         << (side.encoder_ids.empty() ? "" : ", answered with " + std::to_string(side.ids.size())) << "; "
         << side.heads.size() << (side.heads.size() == 1 ? " head" : " heads") << ".</p>";
    for (const std::string& warning : side.warnings)
      html << "<p class=\"warning\" role=\"note\">Warning: " << escape_html(warning) << ".</p>";
    for (const std::string& note : left_out(side)) html << "<p class=\"soft\">" << escape_html(note) << ".</p>";
    html << "</section>";
  }
}

void write_guide(std::ostream& html, const Inspection& side) {
  const bool pooled = is_pooled(pooled_or_first(side));
  const bool sampled = std::ranges::any_of(side.heads, [](const auto& head) { return head.sampled_rows < head.rows; });
  html << "<h2>How to read this</h2><p>A head compares the query of each token with the keys of the tokens it may see; "
          "the softmax of that is its attention weights. Rows of a map are queries, columns are keys. All maps have "
          "one scale:</p><div class=\"scale\"><span>0</span><i></i><span>1</span></div><p class=\"soft\">The shade is "
          "the square root of the weight, so that small weights show: 0.25 is half of full colour, 0.01 a tenth. A "
          "head has the colour of its label.</p><p>"
       << (pooled ? "A cell is the mean over its queries of the weight summed over its keys. "
                  : "Every cell is one exact weight. ");
  html
      << "Entropy, effective keys (the mean of e^entropy), the largest logit, saturated rows (a weight over 0.9), "
         "gradient left (1 − Σp²) and sink mass (weight on key 0) are taken over all rows, inside the kernel. Distance "
         "and the scores of the labels come from the exact weights of "
      << (sampled ? "evenly spaced rows" : "all rows")
      << ", rows that see fewer than 8 keys (or half of a shorter text) left out. “Received” shades a token by how "
         "many times the weight it receives exceeds what uniform attention over the same mask would give it, from 1 "
         "(not at all) to "
      << number(kFullShade)
      << " (full); where a head attends to near tokens, these are the late ones, which few other rows see.</p><p>"
         "“Chance” beside a score is what uniform attention over the same mask would score. A star marks a score "
         "that is significantly above it (for “broad”: above one half): the chance that any head of this model gets "
         "a star without cause is at most "
      << number(kFalseLabels) << ". A head gets a label where the score is significant and meets the rule:</p><table>";
  for (const LabelRule& rule : label_rules())
    html << "<tr><td class=\"label l" << static_cast<int>(rule.label) << "\">" << rule.name << "</td><td>" << rule.rule
         << ".</td></tr>";
  html
      << "</table><p class=\"soft\">Where several of the first four rules are met, the largest difference from uniform "
         "attention wins.</p>";
}

}  // namespace

std::string inspection_page(std::span<const Inspection> sides) {
  std::ostringstream summary, guide;
  for (std::ostringstream* html : {&summary, &guide}) html->exceptions(std::ios::badbit);  // out of memory is an error
  write_summary(summary, sides);
  write_guide(guide, sides[0]);
  Numbers numbers;
  std::string data = data_json(sides, numbers);
  return filled(report_template(), {{"style", std::string(kStyle) + std::string(page_style())},
                                    {"summary", summary.str()},
                                    {"guide", guide.str()},
                                    {"data", std::move(data)},
                                    {"numbers", numbers.text()},
                                    {"modules", inside_script(joined_modules(report_modules()))}});
}

}  // namespace rootdk::lab
