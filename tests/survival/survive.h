#pragma once

// A call is repeated with its first allocation failing, then its second, and so on until none fails. Each failure must
// be an error of the call, leave what the call works on as it was, leak nothing, and not spoil the next call.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "rootdk/tensor.h"
#include "survival/allocations.h"

namespace rootdk::test {

// Anything that can be compared: the bytes of tensors, numbers, texts.
class Bits {
 public:
  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void add(const T& number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void add(std::string_view text) { bytes_.append(text); }
  void add(const Tensor& tensor) { bytes_.append(std::as_const(tensor).view().as<char>(), tensor.bytes()); }
  friend bool operator==(const Bits&, const Bits&) = default;

 private:
  std::string bytes_;
};

// What a call works on, made anew for each attempt.
class Subject {
 public:
  virtual ~Subject() = default;
  // Throws std::bad_alloc where memory runs out.
  virtual void call() = 0;
  // What a call that throws must not have changed.
  virtual Bits kept() const { return {}; }
  // What a call that succeeds has computed.
  virtual Bits result() const = 0;
};

using MakeSubject = std::function<std::unique_ptr<Subject>()>;

struct SurvivalOptions {
  // Allocations that fail one by one; later ones are sampled, ever more seldom.
  std::int64_t one_by_one = 200;
  double growth = 1.0 / 16;
  bool cold = false;  // the first call of its kind in the process: what it builds for later calls is no leak
};

// Fails the test, naming the call and the allocation, where any of this does not hold. Returns how many allocations
// were made to fail.
std::int64_t expect_survives(const std::string& name, const MakeSubject& make, const SurvivalOptions& options = {});

// A subject from functions: a call that returns its result, on something that never changes.
MakeSubject computes(std::function<Bits()> call);

}  // namespace rootdk::test
