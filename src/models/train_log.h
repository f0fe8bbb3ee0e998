#pragma once

// What a training reports, step by step, in files: lines of JSON, CSV, and event files of TensorBoard.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rootdk {

// Numbers of one step by their names, always the same names in the same order for one file.
struct LogEntry {
  std::int64_t step = 0;
  std::vector<std::pair<std::string, double>> numbers;  // one that is not finite is left out, or empty in CSV
};

class TrainLog {
 public:
  virtual ~TrainLog() = default;
  // Is in the file when it returns.
  virtual void add(const LogEntry& entry) = 0;
};

// A file that exists keeps its lines up to step `from` and loses the others: a training that was killed and goes on
// from its last state reports no step twice. Throws rootdk::Error where the file cannot be written or is none of its
// own.
std::unique_ptr<TrainLog> json_log(const std::filesystem::path& file, std::int64_t from);
std::unique_ptr<TrainLog> csv_log(const std::filesystem::path& file, std::int64_t from);
// A new event file in the folder, which is made; TensorBoard shows the files of a folder as one run.
std::unique_ptr<TrainLog> tensorboard_log(const std::filesystem::path& folder, std::int64_t from);

// The checksum of event files: CRC-32C, rotated and shifted as their format asks.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace rootdk
