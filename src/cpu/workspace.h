#pragma once

#include <cstddef>
#include <memory>

namespace rootdk::cpu {

// Scratch memory of one call, handed out in 64-byte aligned parts. A thread keeps its last block, up to a bound, for
// its next call: fresh pages cost as much as a short attention.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  template <class T>
  T* take(std::size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }

  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;

    Block() = default;
    Block(Block&& other) noexcept { swap(other); }
    Block& operator=(Block&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Block();
    void swap(Block& other) noexcept {
      std::swap(memory, other.memory);
      std::swap(bytes, other.bytes);
    }
  };

 private:
  void* take_bytes(std::size_t bytes);

  Block block_;
  std::size_t used_ = 0;
};

}  // namespace rootdk::cpu
