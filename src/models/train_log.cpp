#include "models/train_log.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "models/write_text.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

// The lines of a file up to a step; step_of gives a line's step, or throws where the line is not the file's own.
template <class StepOf>
void keep_until(const fs::path& file, std::int64_t from, StepOf step_of) {
  std::ifstream in(file);
  if (!in) return;
  std::string kept;
  bool all = true;
  for (std::string line; std::getline(in, line);) {
    const std::int64_t step = step_of(line);
    if (step <= from) {
      kept += line + "\n";
    } else {
      all = false;
    }
  }
  in.close();
  if (!all) write_text(file, kept);
}

std::ofstream appending(const fs::path& file) {
  std::ofstream out(file, std::ios::app | std::ios::binary);
  require(out.good(), ErrorKind::file, file.string(), ": cannot be written");
  return out;
}

class LineLog : public TrainLog {
 public:
  explicit LineLog(const fs::path& file) : file_(file), out_(appending(file)) {}

 protected:
  void write(const std::string& text) {
    out_ << text << std::flush;
    require(out_.good(), ErrorKind::file, file_.string(), ": cannot be written");
  }

 private:
  fs::path file_;
  std::ofstream out_;
};

class JsonLog final : public LineLog {
 public:
  using LineLog::LineLog;
  void add(const LogEntry& entry) override {
    nlohmann::ordered_json line = {{"step", entry.step}};
    for (const auto& [name, number] : entry.numbers) {
      if (std::isfinite(number)) line[name] = number;
    }
    write(line.dump() + "\n");
  }
};

class CsvLog final : public LineLog {
 public:
  explicit CsvLog(const fs::path& file) : LineLog(file), empty_(fs::file_size(file) == 0) {}
  void add(const LogEntry& entry) override {
    std::string head = "step", line = std::to_string(entry.step);
    for (const auto& [name, number] : entry.numbers) {
      head += "," + name;
      line += ",";
      if (std::isfinite(number)) line += nlohmann::json(number).dump();
    }
    write((empty_ ? head + "\n" : std::string()) + line + "\n");
    empty_ = false;
  }

 private:
  bool empty_;
};

// Messages of an event file, in the encoding of protocol buffers: a field is its number and kind, then its value.
class Message {
 public:
  void varint(int field, std::uint64_t value) {
    tag(field, 0);
    raw_varint(value);
  }
  void fixed64(int field, double value) {
    tag(field, 1);
    little_endian(std::bit_cast<std::uint64_t>(value), 8);
  }
  void fixed32(int field, float value) {
    tag(field, 5);
    little_endian(std::bit_cast<std::uint32_t>(value), 4);
  }
  void bytes(int field, std::string_view value) {
    tag(field, 2);
    raw_varint(value.size());
    text_ += value;
  }
  void little_endian(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  const std::string& text() const { return text_; }

 private:
  void tag(int field, int kind) { raw_varint(static_cast<std::uint64_t>(field << 3 | kind)); }
  void raw_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>((value & 0x7f) | 0x80);
    text_ += static_cast<char>(value);
  }

  std::string text_;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Event: wall_time 1 (double), step 2, file_version 3, summary 5, session_log 7. Summary: value 1. Value: tag 1,
// simple_value 2 (float). SessionLog: status 1.
class EventLog final : public LineLog {
 public:
  EventLog(const fs::path& file, std::int64_t from) : LineLog(file) {
    Message event;
    event.fixed64(1, seconds_now());
    event.bytes(3, "brain.Event:2");
    record(event.text());
    if (from > 0) start_from(from + 1);
  }
  void add(const LogEntry& entry) override {
    Message summary;
    for (const auto& [name, number] : entry.numbers) {
      if (!std::isfinite(number)) continue;
      Message value;
      value.bytes(1, name);
      value.fixed32(2, static_cast<float>(number));
      summary.bytes(1, value.text());
    }
    Message event;
    event.fixed64(1, seconds_now());
    event.varint(2, static_cast<std::uint64_t>(entry.step));
    event.bytes(5, summary.text());
    record(event.text());
  }

 private:
  // The start of a session: TensorBoard forgets what earlier files of the run say of this step and later ones.
  void start_from(std::int64_t step) {
    constexpr std::uint64_t kStart = 1;
    Message session;
    session.varint(1, kStart);
    Message event;
    event.fixed64(1, seconds_now());
    event.varint(2, static_cast<std::uint64_t>(step));
    event.bytes(7, session.text());
    record(event.text());
  }
  // Length, its checksum, the bytes, their checksum.
  void record(const std::string& bytes) {
    Message length;
    length.little_endian(bytes.size(), 8);
    Message all;
    all.little_endian(bytes.size(), 8);
    all.little_endian(masked_crc32c(length.text()), 4);
    Message tail;
    tail.little_endian(masked_crc32c(bytes), 4);
    write(all.text() + bytes + tail.text());
  }
};

constexpr std::array<std::uint32_t, 256> crc32c_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    table[i] = crc;
  }
  return table;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc32c_table();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::unique_ptr<TrainLog> json_log(const fs::path& file, std::int64_t from) {
  keep_until(file, from, [&](const std::string& line) {
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
    // The last line of a killed process may be cut: it counts as one behind the others.
    constexpr std::string_view kBegin = "{\"step\":";
    const bool begins = line.starts_with(kBegin) || kBegin.starts_with(line);
    if (entry.is_discarded() && begins) return std::numeric_limits<std::int64_t>::max();
    require(entry.is_object() && entry.contains("step") && entry["step"].is_number_integer(), ErrorKind::file,
            file.string(), ": is no log of a training: ", line.substr(0, 80));
    return entry["step"].get<std::int64_t>();
  });
  return std::make_unique<JsonLog>(file);
}

std::unique_ptr<TrainLog> csv_log(const fs::path& file, std::int64_t from) {
  keep_until(file, from, [&, first = true](const std::string& line) mutable {
    if (std::exchange(first, false)) {
      require(line.starts_with("step,") || line == "step", ErrorKind::file, file.string(),
              ": is no log of a training: ", line.substr(0, 80));
      return std::int64_t{-1};
    }
    std::size_t used = 0;
    while (used < line.size() && line[used] >= '0' && line[used] <= '9') ++used;
    const bool whole = used > 0 && used < 19 && used < line.size() && line[used] == ',';
    return whole ? static_cast<std::int64_t>(std::stoll(line.substr(0, used)))
                 : std::numeric_limits<std::int64_t>::max();
  });
  return std::make_unique<CsvLog>(file);
}

std::unique_ptr<TrainLog> tensorboard_log(const fs::path& folder, std::int64_t from) {
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, ErrorKind::file, folder.string(), ": ", error.message());
  // TensorBoard sorts the files of a run by name.
  char name[96];
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.rootdk.%d.%lld", static_cast<long long>(seconds_now()),
                static_cast<int>(getpid()), static_cast<long long>(from));
  return std::make_unique<EventLog>(folder / name, from);
}

}  // namespace rootdk
