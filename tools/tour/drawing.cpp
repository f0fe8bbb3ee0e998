#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <sstream>

#include "core/strided.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {

Tensor normal_tensor(std::initializer_list<std::int64_t> shape, std::uint32_t seed, double deviation) {
  Tensor tensor(DType::f32, shape);
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  for (float& value : tensor.values<float>()) value = static_cast<float>(normal(generator));
  return tensor;
}

double mean_of(const ConstTensorView& view) {
  const float* values = view.as<float>();
  return std::accumulate(values, values + view.elements(), 0.0) / static_cast<double>(view.elements());
}

std::vector<std::string> draw_map(const ConstTensorView& weights, const Style& style) {
  const auto weight = read<float, 2>(weights);
  std::vector<std::string> lines;
  for (std::int64_t i = 0; i < weights.size(0); ++i) {
    float largest = 0;
    for (std::int64_t j = 0; j < weights.size(1); ++j) largest = std::max(largest, weight(i, j));
    std::string line;
    for (std::int64_t j = 0; j < weights.size(1); ++j) line += shade(largest > 0 ? weight(i, j) / largest : 0, 2);
    lines.push_back(style.dim("│") + style.cyan(line) + style.dim("│"));
  }
  return lines;
}

void print_beside(const std::vector<TitledBlock>& blocks, const Style& style) {
  std::size_t height = 0;
  std::vector<std::size_t> widths;
  for (const TitledBlock& block : blocks) {
    height = std::max(height, block.lines.size());
    std::size_t width = display_width(block.title);
    for (const std::string& line : block.lines) width = std::max(width, display_width(line));
    widths.push_back(width);
  }
  const auto print_row = [&](auto cell) {
    std::string line = " ";
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      line += ' ';
      line += pad_right(cell(blocks[b]), widths[b]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    print_line(line);
  };
  print_row([&](const TitledBlock& block) { return style.bold(block.title); });
  for (std::size_t i = 0; i < height; ++i) {
    print_row([&](const TitledBlock& block) { return i < block.lines.size() ? block.lines[i] : std::string(); });
  }
}

void print_line(std::string_view text) { std::printf("%s\n", for_terminal(text).c_str()); }

void print_text(std::string_view text) {
  std::istringstream words(for_terminal(text));
  std::string line = " ";
  for (std::string word; words >> word;) {
    if (line.size() > 1 && display_width(line) + 1 + display_width(word) > kTourColumns) {
      std::printf("%s\n", line.c_str());
      line = " ";
    }
    line += " " + word;
  }
  std::printf("%s\n", line.c_str());
}

}  // namespace rootdk::tools
