#include "models/training_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "models/pending_file.h"
#include "models/train.h"
#include "models/write_text.h"

namespace rootdk {

namespace fs = std::filesystem;

TrainingFolder::TrainingFolder(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  made_ = fs::create_directories(folder_, error);
  require(!error, folder_.string(), ": the folder cannot be made: ", error.message());
  lock();
  // Before the first step, not after the last: a folder that cannot be written would cost the whole training.
  require_writable(Trainer::state_file(folder_));
  remove_leftovers();
}

TrainingFolder::~TrainingFolder() {
  std::error_code ignored;
  if (made_) fs::remove(folder_, ignored);  // fails where it holds anything
  if (descriptor_ >= 0) ::close(descriptor_);
}

// The folder itself is what is locked, so that no file is left behind; the system gives it back when the process ends.
void TrainingFolder::lock() {
  descriptor_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(descriptor_ >= 0, folder_.string(), ": cannot be opened: ", std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  made_ = false;
  if (reason != EWOULDBLOCK) return;  // a file system without locks
  ::close(descriptor_);
  descriptor_ = -1;
  fail(folder_.string(), ": another process trains into this folder");
}

void TrainingFolder::remove_leftovers() const {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    if (entry.is_regular_file(ignored) && PendingFile::is_leftover(entry.path())) fs::remove(entry.path(), ignored);
  }
}

}  // namespace rootdk
