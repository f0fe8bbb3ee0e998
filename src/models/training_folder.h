#pragma once

#include <filesystem>

namespace rootdk {

// The folder that one training writes to. Made where it is not there, and locked until the end: a second training is
// refused. What a killed training left half-written is removed. The folder goes away again where nothing was written.
class TrainingFolder {
 public:
  // Throws rootdk::Error where the folder cannot be written, or another process trains there.
  explicit TrainingFolder(const std::filesystem::path& folder);
  TrainingFolder(const TrainingFolder&) = delete;
  TrainingFolder& operator=(const TrainingFolder&) = delete;
  ~TrainingFolder();

 private:
  void lock();
  void remove_leftovers() const;

  std::filesystem::path folder_;
  bool made_ = false;
  int descriptor_ = -1;
};

}  // namespace rootdk
