#pragma once

#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "rootdk/attention.h"

namespace rootdk::cuda {

inline constexpr std::size_t kWorkspaceAlignment = 16;

inline void require_workspace(const Execution& execution, std::size_t bytes) {
  if (bytes == 0) return;
  require(execution.workspace && execution.workspace_bytes >= bytes, "attention: this call needs ", bytes,
          " bytes of device workspace (attention_workspace()), have ",
          execution.workspace ? execution.workspace_bytes : 0);
  require(reinterpret_cast<std::uintptr_t>(execution.workspace) % kWorkspaceAlignment == 0,
          "attention: the workspace is not aligned to ", kWorkspaceAlignment, " bytes");
}

}  // namespace rootdk::cuda
