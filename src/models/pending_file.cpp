#include "models/pending_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

// A file under way is NAME.tmp-XXXXXX with random letters.
constexpr std::string_view kMark = ".tmp-";
constexpr std::size_t kRandomLetters = 6;

// Follows a link, so that the file it leads to is replaced and not the link. A device, pipe or folder is refused:
// rename would put a file in its place.
fs::path resolve(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  require(!fs::exists(status) || fs::is_regular_file(status), "cannot write ", path.string(),
          ": it exists and is not a regular file");
  const fs::path resolved = fs::weakly_canonical(path, error);
  return error ? path : resolved;
}

}  // namespace

PendingFile::PendingFile(const fs::path& path) : target_(resolve(path)) {
  temporary_ = target_.string() + std::string(kMark) + std::string(kRandomLetters, 'X');
  descriptor_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  check(descriptor_ >= 0, "cannot create a temporary file beside it");
}

PendingFile::~PendingFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

bool PendingFile::is_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t at = name.rfind(kMark);
  return at != std::string::npos && at > 0 && name.size() == at + kMark.size() + kRandomLetters;
}

void PendingFile::write(const void* data, std::size_t size) {
  const auto* next = static_cast<const std::byte*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, next, size);
    if (written < 0 && errno == EINTR) continue;
    check(written >= 0, "cannot write");
    next += written;
    size -= static_cast<std::size_t>(written);
  }
}

void PendingFile::commit() {
  check(::fchmod(descriptor_, mode()) == 0, "cannot set the permissions");
  check(::fsync(descriptor_) == 0, "cannot flush to the disk");
  check(::close(std::exchange(descriptor_, -1)) == 0, "cannot close");
  check(::rename(temporary_.c_str(), target_.c_str()) == 0, "cannot put in place");
  temporary_.clear();
  flush_folder();
}

// That of the file it replaces, else what the umask leaves of rw-rw-rw-.
unsigned PendingFile::mode() const {
  struct stat status {};
  if (::stat(target_.c_str(), &status) == 0) return status.st_mode & 07777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

// The new name survives a power cut only once its folder is on the disk. Some file systems cannot; the file is whole
// either way.
void PendingFile::flush_folder() const {
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

void PendingFile::check(bool condition, std::string_view what) const {
  if (condition) return;
  const char* reason = std::strerror(errno);
  fail(ErrorKind::file, "cannot write ", target_.string(), ": ", what, ": ", reason);
}

}  // namespace rootdk
