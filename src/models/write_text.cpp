#include "models/write_text.h"

#include "models/pending_file.h"

namespace rootdk {

void write_text(const std::filesystem::path& path, std::string_view text) {
  PendingFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void require_writable(const std::filesystem::path& path) { const PendingFile unused(path); }

}  // namespace rootdk
