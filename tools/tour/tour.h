#pragma once

// The tour: what a newcomer sees first. Each section is a function in a file of its own that prints one screen; the
// list of them is in tour.cpp. All numbers come from calls of the library, made while you watch.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/tensor.h"
#include "tools/terminal.h"

namespace rootdk::tools {

void show_sentence(const Style& style);
void show_scale(const Style& style);
void show_statistics(const Style& style);
void show_masks(const Style& style);
void show_speed(const Style& style);
void show_model(const Style& style);
void show_next(const Style& style);

// f32, independent standard normal values times `deviation`; the same for the same seed.
Tensor normal_tensor(std::initializer_list<std::int64_t> shape, std::uint32_t seed, double deviation = 1.0);

double mean_of(const ConstTensorView& f32_contiguous);

// A matrix of weights [rows, columns] in shades, each cell two characters, each row relative to its largest weight.
std::vector<std::string> draw_map(const ConstTensorView& weights, const Style& style);

// Blocks of lines side by side, each under its title.
struct TitledBlock {
  std::string title;
  std::vector<std::string> lines;
};
void print_beside(const std::vector<TitledBlock>& blocks, const Style& style);

// What the terminal can show of it: ASCII where it does not take UTF-8.
void print_line(std::string_view text = {});

inline constexpr std::size_t kTourColumns = 80;
// A paragraph, set in by two columns and broken between words.
void print_text(std::string_view text);

}  // namespace rootdk::tools
