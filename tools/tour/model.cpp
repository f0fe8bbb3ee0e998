#include <chrono>

#include "models/builtin.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

// Text as it comes, set in a little and broken between words; line ends wait until something follows them.
class IndentedText {
 public:
  void print(std::string_view part) {
    for (char c : part) put(c);
    std::fflush(stdout);
  }

 private:
  static constexpr int kColumns = 64;  // a word may end behind it

  void put(char c) {
    if (c == '\n' || (c == ' ' && column_ >= kColumns)) {
      ++line_ends_;
      return;
    }
    for (; line_ends_ > 0; --line_ends_) {
      std::fputs("\n    ", stdout);
      column_ = 0;
    }
    std::putchar(c);
    ++column_;
  }

  int column_ = 0, line_ends_ = 0;
};

}  // namespace

void show_model(const Style& style) {
  constexpr std::int64_t kTokens = 90;
  print_text(
      "A language model of 0.9 million parameters that comes with the project: it was trained by 'rootdk train' on "
      "Shakespeare, and runs on the same kernels, a token at a time, with a cache.");
  print_line();
  std::printf("    %s", style.bold("ROMEO:").c_str());
  IndentedText text;
  text.print("\n");
  const auto begin = std::chrono::steady_clock::now();
  builtin_continuation("ROMEO:\n", kTokens, /*seed=*/3, [&](std::string_view part) { text.print(part); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_line(format("\n\n  %d tokens in %.2f s, loading included. More:", static_cast<int>(kTokens), seconds));
  print_line("    " + style.green("build/rootdk generate builtin --prompt \"JULIET:\""));
  print_line();
  print_text(
      "A folder with a checkpoint of Llama, Qwen, Gemma or another of twenty architectures runs in the same way. Its "
      "weights are used in the type that they are stored in, or as int8 or int4; many prompts share a batch:");
  print_line("    " + style.green("build/rootdk generate FOLDER --prompts FILE --weights int8"));
}

}  // namespace rootdk::tools
