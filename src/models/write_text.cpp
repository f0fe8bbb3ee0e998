#include "models/write_text.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "core/check.h"

namespace rootdk {

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += std::string(".").append(std::to_string(::getpid())).append(".tmp");
  std::error_code error;
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.flush();
    if (!file) {
      std::filesystem::remove(temporary, error);
      fail(path.string(), ": cannot be written");
    }
  }
  std::filesystem::rename(temporary, path, error);
  if (error) {
    const std::string reason = error.message();
    std::filesystem::remove(temporary, error);
    fail(path.string(), ": ", reason);
  }
}

}  // namespace rootdk
