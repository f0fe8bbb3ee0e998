#include "models/zip_archive.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/check.h"

namespace rootdk {
namespace {

constexpr std::uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr std::uint32_t kCentral = 0x02014b50, kLocal = 0x04034b50;
constexpr std::uint32_t kAll32 = 0xffffffffu;
constexpr std::uint16_t kAll16 = 0xffffu;
constexpr std::size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kCentralBytes = 46, kLocalBytes = 30;

class Archive {
 public:
  Archive(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::map<std::string, std::span<const std::byte>> members() const {
    const Directory directory = find_directory();
    std::map<std::string, std::span<const std::byte>> found;
    std::uint64_t at = directory.offset;
    for (std::uint64_t i = 0; i < directory.entries; ++i) at = read_entry(at, found);
    return found;
  }

 private:
  struct Directory {
    std::uint64_t offset = 0, entries = 0;
  };

  template <class T>
  T number(std::uint64_t at) const {
    check(at, sizeof(T));
    T value = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) {
      value = static_cast<T>(static_cast<std::uint64_t>(value) << 8 | std::to_integer<std::uint64_t>(bytes_[at + i]));
    }
    return value;
  }

  void check(std::uint64_t at, std::uint64_t count) const {
    require(at <= bytes_.size() && count <= bytes_.size() - at, where_, ": bytes ", at, " to ", at, " + ", count,
            " are not in the ", bytes_.size(), " of the file");
  }

  // The record at the end of the file, behind which there may be a comment.
  Directory find_directory() const {
    require(bytes_.size() >= kEndBytes, where_, ": ", bytes_.size(), " bytes are no zip archive");
    const std::size_t first = bytes_.size() - std::min<std::size_t>(bytes_.size(), kEndBytes + kAll16);
    for (std::size_t at = bytes_.size() - kEndBytes + 1; at-- > first;) {
      if (number<std::uint32_t>(at) != kEnd) continue;
      Directory directory{.offset = number<std::uint32_t>(at + 16), .entries = number<std::uint16_t>(at + 10)};
      const bool large = directory.offset == kAll32 || directory.entries == kAll16;
      if (large && at >= kLocatorBytes && number<std::uint32_t>(at - kLocatorBytes) == kEnd64Locator) {
        const auto end64 = number<std::uint64_t>(at - kLocatorBytes + 8);
        check(end64, kEnd64Bytes);
        require(number<std::uint32_t>(end64) == kEnd64, where_, ": the zip64 record at ", end64, " is broken");
        directory = {.offset = number<std::uint64_t>(end64 + 48), .entries = number<std::uint64_t>(end64 + 32)};
      }
      return directory;
    }
    fail(where_, ": is no zip archive");
  }

  // A size or offset that does not fit into 32 bits stands in the extra field, in this order.
  struct Large {
    std::uint64_t size, stored, offset;
  };
  void read_large(std::uint64_t extra, std::uint64_t length, Large& values) const {
    const std::uint64_t end = extra + length;
    while (extra + 4 <= end) {
      const auto kind = number<std::uint16_t>(extra), count = number<std::uint16_t>(extra + 2);
      if (kind == 1) {
        std::uint64_t at = extra + 4;
        for (std::uint64_t* value : {&values.size, &values.stored, &values.offset}) {
          if (*value != kAll32) continue;
          require(at + 8 <= extra + 4 + count, where_, ": a zip64 field is too short");
          *value = number<std::uint64_t>(at);
          at += 8;
        }
        return;
      }
      extra += 4 + count;
    }
  }

  std::uint64_t read_entry(std::uint64_t at, std::map<std::string, std::span<const std::byte>>& found) const {
    check(at, kCentralBytes);
    require(number<std::uint32_t>(at) == kCentral, where_, ": the zip directory is broken at byte ", at);
    const auto flags = number<std::uint16_t>(at + 8), method = number<std::uint16_t>(at + 10);
    const auto name_length = number<std::uint16_t>(at + 28), extra_length = number<std::uint16_t>(at + 30);
    const auto comment_length = number<std::uint16_t>(at + 32);
    Large large{.size = number<std::uint32_t>(at + 24),
                .stored = number<std::uint32_t>(at + 20),
                .offset = number<std::uint32_t>(at + 42)};
    const std::uint64_t next = at + kCentralBytes + name_length + extra_length + comment_length;
    check(at, next - at);
    const std::string name(reinterpret_cast<const char*>(bytes_.data()) + at + kCentralBytes, name_length);
    read_large(at + kCentralBytes + name_length, extra_length, large);
    require((flags & 1) == 0, where_, ": '", name, "' is encrypted");
    require(method == 0 && large.size == large.stored, where_, ": '", name, "' is compressed (method ", method,
            "), which is not supported");
    check(large.offset, kLocalBytes);
    require(number<std::uint32_t>(large.offset) == kLocal, where_, ": '", name, "' has no header at byte ",
            large.offset);
    const std::uint64_t data = large.offset + kLocalBytes + number<std::uint16_t>(large.offset + 26) +
                               number<std::uint16_t>(large.offset + 28);
    check(data, large.size);
    require(found.emplace(name, bytes_.subspan(data, large.size)).second, where_, ": has '", name, "' twice");
    return next;
  }

  std::span<const std::byte> bytes_;
  const std::string& where_;
};

}  // namespace

std::map<std::string, std::span<const std::byte>> stored_members(std::span<const std::byte> archive,
                                                                 const std::string& where) {
  return Archive(archive, where).members();
}

}  // namespace rootdk
