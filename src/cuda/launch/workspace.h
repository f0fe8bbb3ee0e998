#pragma once

#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "rootdk/attention.h"

namespace rootdk::cuda {

inline constexpr std::size_t kWorkspaceAlignment = 16;

inline void require_workspace(const CudaExecution& execution, std::size_t bytes, const char* operation = "attention") {
  if (bytes == 0) return;
  require(execution.workspace && execution.workspace_bytes >= bytes, operation, ": this call needs ", bytes,
          " bytes of device workspace (", operation, "_workspace()), have ",
          execution.workspace ? execution.workspace_bytes : 0);
  require(reinterpret_cast<std::uintptr_t>(execution.workspace) % kWorkspaceAlignment == 0, operation,
          ": the workspace is not aligned to ", kWorkspaceAlignment, " bytes");
}

}  // namespace rootdk::cuda
