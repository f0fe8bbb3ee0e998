// Logs of a training: what they hold, and that a training that goes on reports no step twice.

#include "models/train_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/check.h"
#include "support/error_of.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

std::string content(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

LogEntry entry(std::int64_t step, double loss, double validation = NAN) {
  return {.step = step, .numbers = {{"loss", loss}, {"validation_loss", validation}}};
}

TEST(TrainLog, LinesOfJson) {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "log.jsonl";
  json_log(file, 0)->add(entry(10, 2.5, 3.25));
  json_log(file, 10)->add(entry(20, 2.25));
  EXPECT_EQ(content(file), "{\"step\":10,\"loss\":2.5,\"validation_loss\":3.25}\n{\"step\":20,\"loss\":2.25}\n");
  // Step 20 was not saved, and the process was killed in the middle of a line.
  std::ofstream(file, std::ios::app) << "{\"step\":30,\"lo";
  json_log(file, 10)->add(entry(20, 2.0));
  EXPECT_EQ(content(file), "{\"step\":10,\"loss\":2.5,\"validation_loss\":3.25}\n{\"step\":20,\"loss\":2.0}\n");
}

TEST(TrainLog, Csv) {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "log.csv";
  csv_log(file, 0)->add(entry(10, 2.5, 3.25));
  csv_log(file, 10)->add(entry(20, 2.25));
  EXPECT_EQ(content(file), "step,loss,validation_loss\n10,2.5,3.25\n20,2.25,\n");
  csv_log(file, 10)->add(entry(20, 2.0));
  EXPECT_EQ(content(file), "step,loss,validation_loss\n10,2.5,3.25\n20,2.0,\n");
}

TEST(TrainLog, OtherFilesAreLeftAlone) {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "notes.txt";
  std::ofstream(file) << "[1, 2]\n";
  EXPECT_THROW(json_log(file, 0), Error);
  EXPECT_THROW(csv_log(file, 0), Error);
  EXPECT_EQ(content(file), "[1, 2]\n");
  EXPECT_THROW(json_log(folder / "absent" / "log", 0), Error);
}

// The check value of CRC-32C, and the mask: a rotation by 15 bits and a constant.
TEST(TrainLog, Checksum) {
  const std::uint32_t crc = 0xE3069283u;
  EXPECT_EQ(masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

// The records of the one event file in a folder; their checksums are right.
std::vector<std::string> records_in(const std::filesystem::path& folder) {
  std::string bytes;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    EXPECT_NE(file.path().string().find("tfevents"), std::string::npos);
    bytes = content(file.path());
  }
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto number = [&](std::size_t from, std::size_t size) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data() + from, size);
      return value;
    };
    const auto length = static_cast<std::size_t>(number(at, 8));
    EXPECT_EQ(number(at + 8, 4), masked_crc32c(std::string_view(bytes).substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number(at + 12 + length, 4), masked_crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

TEST(TrainLog, EventsOfTensorBoard) {
  const test::TemporaryFolder folder;
  tensorboard_log(folder / "run", 0)->add(entry(300, 2.5));
  const std::vector<std::string> records = records_in(folder / "run");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  // Behind the time: step 300, and a summary with one value, "loss" = 2.5f. What is not finite is left out.
  const std::string value = std::string("\x0a\x04loss\x15") + std::string("\x00\x00\x20\x40", 4);
  EXPECT_EQ(records[1].substr(9), std::string("\x10\xac\x02\x2a") + static_cast<char>(value.size() + 2) + "\x0a" +
                                      static_cast<char>(value.size()) + value);
}

// A session that starts at step 301 makes TensorBoard forget that step and later ones of the files before.
TEST(TrainLog, AResumedRunForgetsLaterEvents) {
  const test::TemporaryFolder folder;
  tensorboard_log(folder / "run", 300)->add(entry(310, 2.5));
  const std::vector<std::string> records = records_in(folder / "run");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1].substr(9), "\x10\xad\x02\x3a\x02\x08\x01");
}

TEST(TrainLog, AFileThatIsNoLogIsKept) {
  const test::TemporaryFolder folder;
  folder.write("notes.txt", "my notes\n");
  EXPECT_THAT(test::error_of([&] { json_log(folder / "notes.txt", 0); }),
              ::testing::HasSubstr("is no log of a training"));
  EXPECT_EQ(content(folder / "notes.txt"), "my notes\n");
}

}  // namespace
}  // namespace rootdk
