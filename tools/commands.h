#pragma once

// The verbs of the command line. Each lives in a file of its own and adds itself to the program: its options, its help,
// and the function that runs it. A verb throws rootdk::Error; main() prints the message.

namespace rootdk::tools {

class Command;

void add_tour_command(Command& program);
void add_attention_command(Command& program);
void add_explain_command(Command& program);
void add_bench_command(Command& program);
void add_plan_command(Command& program);
void add_forward_command(Command& program);
void add_generate_command(Command& program);
void add_quantize_command(Command& program);
void add_embed_command(Command& program);
void add_train_command(Command& program);
void add_inspect_command(Command& program);
void add_lab_command(Command& program);
void add_live_command(Command& program);
void add_version_command(Command& program);

}  // namespace rootdk::tools
