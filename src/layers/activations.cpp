#include "layers/activations.h"

#include "core/check.h"
#include "layers/rows.h"
#include "layers/vector_math.h"

namespace rootdk {
namespace {

constexpr float kInverseSqrt2 = 0.70710678f;
constexpr float kInverseSqrt2Pi = 0.39894228f;
constexpr float kSqrt2OverPi = 0.79788456f;
constexpr float kGeluCubic = 0.044715f;
constexpr float kQuick = 1.702f;

// Each function with its derivative.
struct Relu {
  static ROOTDK_INLINE float f(float x) { return x > 0 ? x : 0; }
  static ROOTDK_INLINE float d(float x) { return x > 0 ? 1.0f : 0.0f; }
};
struct Gelu {
  static ROOTDK_INLINE float phi(float x) { return 0.5f * (1.0f + vector_math::erf(x * kInverseSqrt2)); }
  static ROOTDK_INLINE float f(float x) { return x * phi(x); }
  static ROOTDK_INLINE float d(float x) { return phi(x) + x * kInverseSqrt2Pi * vector_math::exp(-0.5f * x * x); }
};
struct GeluTanh {
  static ROOTDK_INLINE float t(float x) { return vector_math::tanh(kSqrt2OverPi * (x + kGeluCubic * x * x * x)); }
  static ROOTDK_INLINE float f(float x) { return 0.5f * x * (1.0f + t(x)); }
  static ROOTDK_INLINE float d(float x) {
    const float y = t(x);
    return 0.5f * (1.0f + y) + 0.5f * x * (1.0f - y * y) * kSqrt2OverPi * (1.0f + 3.0f * kGeluCubic * x * x);
  }
};
struct GeluQuick {
  static ROOTDK_INLINE float f(float x) { return x * vector_math::sigmoid(kQuick * x); }
  static ROOTDK_INLINE float d(float x) {
    const float s = vector_math::sigmoid(kQuick * x);
    return s + kQuick * x * s * (1.0f - s);
  }
};
struct Silu {
  static ROOTDK_INLINE float f(float x) { return x * vector_math::sigmoid(x); }
  static ROOTDK_INLINE float d(float x) {
    const float s = vector_math::sigmoid(x);
    return s + x * s * (1.0f - s);
  }
};
struct Tanh {
  static ROOTDK_INLINE float f(float x) { return vector_math::tanh(x); }
  static ROOTDK_INLINE float d(float x) {
    const float y = vector_math::tanh(x);
    return 1.0f - y * y;
  }
};

// The loops; `up` is null where there is no gate.
template <class F>
ROOTDK_INLINE void forward_loop(const float* x, const float* up, float* y, std::int64_t count) {
  if (up) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = F::f(x[i]) * up[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) y[i] = F::f(x[i]);
  }
}

template <class F>
ROOTDK_INLINE void backward_loop(const float* x, const float* grad_y, float* grad_x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) grad_x[i] += F::d(x[i]) * grad_y[i];
}

template <class F>
ROOTDK_INLINE void gated_backward_loop(const float* const* in, const float* grad_y, float* const* grad,
                                       std::int64_t count) {
  const float *gate = in[0], *up = in[1];
  float *grad_gate = grad[0], *grad_up = grad[1];
  for (std::int64_t i = 0; i < count; ++i) grad_gate[i] += F::d(gate[i]) * up[i] * grad_y[i];
  for (std::int64_t i = 0; i < count; ++i) grad_up[i] += F::f(gate[i]) * grad_y[i];
}

ROOTDK_VECTOR_CLONES void forward_block(Activation activation, const float* x, const float* up, float* y,
                                        std::int64_t count) {
  switch (activation) {
    case Activation::relu: return forward_loop<Relu>(x, up, y, count);
    case Activation::gelu: return forward_loop<Gelu>(x, up, y, count);
    case Activation::gelu_tanh: return forward_loop<GeluTanh>(x, up, y, count);
    case Activation::gelu_quick: return forward_loop<GeluQuick>(x, up, y, count);
    case Activation::silu: return forward_loop<Silu>(x, up, y, count);
    case Activation::tanh: return forward_loop<Tanh>(x, up, y, count);
  }
}

ROOTDK_VECTOR_CLONES void backward_block(Activation activation, const float* x, const float* grad_y, float* grad_x,
                                         std::int64_t count) {
  switch (activation) {
    case Activation::relu: return backward_loop<Relu>(x, grad_y, grad_x, count);
    case Activation::gelu: return backward_loop<Gelu>(x, grad_y, grad_x, count);
    case Activation::gelu_tanh: return backward_loop<GeluTanh>(x, grad_y, grad_x, count);
    case Activation::gelu_quick: return backward_loop<GeluQuick>(x, grad_y, grad_x, count);
    case Activation::silu: return backward_loop<Silu>(x, grad_y, grad_x, count);
    case Activation::tanh: return backward_loop<Tanh>(x, grad_y, grad_x, count);
  }
}

ROOTDK_VECTOR_CLONES void gated_backward_block(Activation activation, const float* const* in, const float* grad_y,
                                               float* const* grad, std::int64_t count) {
  switch (activation) {
    case Activation::relu: return gated_backward_loop<Relu>(in, grad_y, grad, count);
    case Activation::gelu: return gated_backward_loop<Gelu>(in, grad_y, grad, count);
    case Activation::gelu_tanh: return gated_backward_loop<GeluTanh>(in, grad_y, grad, count);
    case Activation::gelu_quick: return gated_backward_loop<GeluQuick>(in, grad_y, grad, count);
    case Activation::silu: return gated_backward_loop<Silu>(in, grad_y, grad, count);
    case Activation::tanh: return gated_backward_loop<Tanh>(in, grad_y, grad, count);
  }
}

ROOTDK_VECTOR_CLONES void clamped_forward(const float* gate, const float* up, float* y, float limit,
                                          std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    y[i] = GeluQuick::f(g) * (vector_math::clamp(up[i], -limit, limit) + 1.0f);
  }
}

ROOTDK_VECTOR_CLONES void clamped_backward(const float* const* in, const float* grad_y, float* const* grad, float limit,
                                           std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float gate = in[0][i], up = in[1][i];
    const float g = gate > limit ? limit : gate;
    const float u = vector_math::clamp(up, -limit, limit);
    grad[0][i] += gate > limit ? 0.0f : GeluQuick::d(g) * (u + 1.0f) * grad_y[i];
    grad[1][i] += u == up ? GeluQuick::f(g) * grad_y[i] : 0.0f;
  }
}

void require_same_size(const char* operation, const Value& gate, const Value& up) {
  require(gate->value().elements() == up->value().elements(), operation, ": gate ", describe(gate->value()), " and up ",
          describe(up->value()));
}

}  // namespace

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::relu: return "relu";
    case Activation::gelu: return "gelu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::gelu_quick: return "gelu_quick";
    case Activation::silu: return "silu";
    case Activation::tanh: return "tanh";
  }
  return "unknown";
}

Value activate(Context& context, const Value& x, Activation activation) {
  Value y = make_unwritten_like(x);
  const std::int64_t count = x->value().elements();
  for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    forward_block(activation, x->data() + begin, nullptr, y->data() + begin, end - begin);
  });
  if (context.tape) {
    context.tape->record([&context, x, y, activation, count] {
      const float* grad_y = y->grad_data();
      float* grad_x = x->grad_data();
      for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
        backward_block(activation, x->data() + begin, grad_y + begin, grad_x + begin, end - begin);
      });
    });
  }
  return y;
}

Value gated(Context& context, const Value& gate, const Value& up, Activation activation) {
  require_same_size("gated", gate, up);
  Value y = make_unwritten_like(gate);
  const std::int64_t count = gate->value().elements();
  for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    forward_block(activation, gate->data() + begin, up->data() + begin, y->data() + begin, end - begin);
  });
  if (context.tape) {
    context.tape->record([&context, gate, up, y, activation, count] {
      const float* grad_y = y->grad_data();
      float *grad_gate = gate->grad_data(), *grad_up = up->grad_data();
      for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
        const float* const in[] = {gate->data() + begin, up->data() + begin};
        float* const grad[] = {grad_gate + begin, grad_up + begin};
        gated_backward_block(activation, in, grad_y + begin, grad, end - begin);
      });
    });
  }
  return y;
}

Value clamped_swiglu(Context& context, const Value& gate, const Value& up, float limit) {
  require_same_size("clamped_swiglu", gate, up);
  Value y = make_unwritten_like(gate);
  const std::int64_t count = gate->value().elements();
  for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    clamped_forward(gate->data() + begin, up->data() + begin, y->data() + begin, limit, end - begin);
  });
  if (context.tape) {
    context.tape->record([&context, gate, up, y, limit, count] {
      const float* grad_y = y->grad_data();
      float *grad_gate = gate->grad_data(), *grad_up = up->grad_data();
      for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
        const float* const in[] = {gate->data() + begin, up->data() + begin};
        float* const grad[] = {grad_gate + begin, grad_up + begin};
        clamped_backward(in, grad_y + begin, grad, limit, end - begin);
      });
    });
  }
  return y;
}

}  // namespace rootdk
