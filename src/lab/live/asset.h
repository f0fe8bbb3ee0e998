#pragma once

// Puts a file of the source tree into the object file, and defines the function that returns it. A macro, since only
// the assembler reads files.

#include "lab/live/assets.h"

#define ROOTDK_ASSET(name, path)                                                                             \
  asm(".section .rodata\n.global rootdk_asset_" #name "\n.global rootdk_asset_" #name                        \
      "_end\n"                                                                                               \
      "rootdk_asset_" #name ":\n.incbin \"" path "\"\nrootdk_asset_" #name "_end:\n.byte 0\n.previous\n");   \
  extern "C" const char rootdk_asset_##name[], rootdk_asset_##name##_end[];                                  \
  std::string_view rootdk::lab::name() {                                                                     \
    return {rootdk_asset_##name, static_cast<std::size_t>(rootdk_asset_##name##_end - rootdk_asset_##name)}; \
  }
