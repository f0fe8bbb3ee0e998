#include "models/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace rootdk {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Without O_NONBLOCK a pipe would wait here for a writer, before it can be refused.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require(file.get() >= 0, ErrorKind::file, "cannot open ", path.string(), ": ", std::strerror(errno));
  struct stat status {};
  require(::fstat(file.get(), &status) == 0, ErrorKind::file, "cannot examine ", path.string(), ": ",
          std::strerror(errno));
  require(S_ISREG(status.st_mode), ErrorKind::file, "cannot open ", path.string(), ": it is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses length 0; an empty span serves
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  require(memory != MAP_FAILED, ErrorKind::file, "cannot map the ", size, " bytes of ", path.string(), ": ",
          std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = [](const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); };
  const std::uintptr_t file_begin = address(bytes_.data()), begin = address(part.data());
  if (begin < file_begin || begin + part.size() > file_begin + bytes_.size()) return;
  const std::uintptr_t first = (begin + page - 1) / page * page, last = (begin + part.size()) / page * page;
  // Nothing is lost where the system refuses: the memory stays.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace rootdk
