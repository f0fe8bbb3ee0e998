#include <array>
#include <utility>

#include "cpu/append.h"
#include "cpu/decode.h"
#include "cpu/decode_targets.h"

namespace rootdk::cpu {
namespace {

constexpr std::size_t kMaxTargets = 8;
constexpr std::int64_t kMaxHeadDim = 512;

std::string refuse(const DecodeTarget& target, const AttendCall& call) {
  if (call.q.device.kind != DeviceKind::cpu) return "the tensors lie on a CUDA device";
  if (call.q.dtype == DType::f64)
    return "f64 is computed by the reference, in plain loops without SIMD: exact, and slow";
  if (call.shape.head_dim > kMaxHeadDim || call.shape.value_dim > kMaxHeadDim) {
    return "head_dim " + std::to_string(call.shape.head_dim) + " and value_dim " +
           std::to_string(call.shape.value_dim) + " must be at most " + std::to_string(kMaxHeadDim);
  }
  return target.missing();
}

// Implementations are plain function pointers, made for each target from its index.
template <std::size_t I>
AttendImplementation implementation() {
  return {.name = decode_targets()[I].name, .answer = [](const AttendCall& call) {
            return accept_unless<AttendCall>(refuse(decode_targets()[I], call), [](const AttendCall& accepted) {
              run_attend(accepted, decode_targets()[I].kernels());
            });
          }};
}

template <std::size_t... I>
std::array<AttendImplementation, kMaxTargets> make(std::index_sequence<I...>) {
  return {(I < decode_targets().size() ? implementation<I>() : AttendImplementation{})...};
}

}  // namespace

std::span<const AttendImplementation> attend_implementations() {
  static const auto all = make(std::make_index_sequence<kMaxTargets>{});
  return std::span(all).first(decode_targets().size());
}

std::span<const AppendImplementation> append_implementations() {
  static constexpr AppendImplementation kAppend[] = {
      {.name = "cpu", .answer = [](const AppendCall& call) {
         const bool on_cpu = call.k.device.kind == DeviceKind::cpu;
         return accept_unless(on_cpu ? "" : "the tensors lie on a CUDA device", run_append);
       }}};
  return kAppend;
}

}  // namespace rootdk::cpu
