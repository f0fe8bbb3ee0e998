#pragma once

// What forward and backward share on the host: views for kernels, scratch memory, and the reasons to refuse a call.

#include <string>

#include "core/attention_call.h"
#include "cuda/portable/row_passes.h"

namespace rootdk::cuda::portable {

// The largest head_dim and value_dim of the kernels.
inline constexpr std::int64_t kLargestDim = 256;

// `converts`: the kernel computes in another type than the tensor's, and converts element by element.
template <class View>
Matrix make_matrix(const View& view, bool converts);

// Hands out parts of the scratch memory. With null memory it only counts, so that the same code both computes the size
// and lays out the parts.
class Workspace {
 public:
  explicit Workspace(void* memory) : memory_(static_cast<unsigned char*>(memory)) {}

  void* take(std::size_t bytes);  // aligned to 16 bytes
  float* floats(std::int64_t count);
  // A row-major [a, b, c].
  DeviceView<float, 3> rows(std::int64_t a, std::int64_t b, std::int64_t c);
  std::size_t bytes() const { return bytes_; }

 private:
  unsigned char* memory_;
  std::size_t bytes_ = 0;
};

DeviceView<const float, 3> as_const(const DeviceView<float, 3>& view);

// The scaled rows of x and their inverse norms, in scratch memory, and the rule that uses them.
NormArguments norm_arguments(const ConstTensorView& x, const Matrix& matrix, Workspace& workspace);
void set_norms(LogitRule& rule, const NormArguments& q, const NormArguments& k);

// Reasons that do not depend on which kernel would run; empty: none.
std::string refuse_device(const ConstTensorView& q);  // checks its device and its type
std::string refuse_call(const ConstTensorView& q, const AttentionShape& shape, const AttentionParams& params);
std::string refuse_shared_bytes(const Device& device, int bytes);
std::string refuse_blocks(std::int64_t blocks);

}  // namespace rootdk::cuda::portable
