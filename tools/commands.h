#pragma once

// The verbs of the command line. Each lives in a file of its own and adds itself to the program: its options, its help,
// and the function that runs it. A verb throws rootdk::Error; main() prints the message.

namespace CLI {
class App;
}

namespace rootdk::tools {

void add_tour_command(CLI::App& program);
void add_attend_command(CLI::App& program);
void add_explain_command(CLI::App& program);
void add_bench_command(CLI::App& program);
void add_forward_command(CLI::App& program);
void add_generate_command(CLI::App& program);
void add_train_command(CLI::App& program);
void add_inspect_command(CLI::App& program);
void add_lab_command(CLI::App& program);
void add_live_command(CLI::App& program);
void add_version_command(CLI::App& program);

}  // namespace rootdk::tools
