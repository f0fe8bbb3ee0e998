#include "layers/linear.h"

#include "core/check.h"
#include "layers/products.h"
#include "layers/rows.h"
#include "layers/stored_matrix.h"

namespace rootdk {
namespace {

void add_bias(const Context& context, const Value& bias, Node& y) {
  const float* b = bias->data();
  const std::int64_t width = y.width();
  for_row_blocks(context, y.rows(), kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* out = y.data() + row * width;
      for (std::int64_t d = 0; d < width; ++d) out[d] += b[d];
    }
  });
}

// "f32 [out, in]", for messages.
std::string weight_text(const Node& weight) {
  const std::string_view type = weight.stored() ? name_of(weight.stored()->matrix.format) : "f32";
  return std::string(type) + " " + shape_text(weight.shape());
}

// y of a product whose sizes fit.
Value make_output(const Node& x, const Node& weight, const Node* bias) {
  const std::int64_t in = x.width(), out = weight.rows();
  require(weight.width() == in, "linear: input of width ", in, " for a weight ", weight_text(weight));
  require(!bias || bias->elements() == out, "linear: bias of ", bias ? bias->elements() : 0, " elements for a weight ",
          weight_text(weight));
  return make_unwritten({x.rows(), out});
}

LinearProduct product_of(const Node& weight, const Node* bias, Node& y) {
  return {.weight = matrix_of(weight), .bias = bias ? bias->data() : nullptr, .y = y.data()};
}

// Without a tape: the library's own product, which reads weights in any type.
void multiply_stored(const Context& context, const Node& x, std::span<const LinearProduct> products) {
  const double start = context.times ? layer_clock(*context.times) : 0.0;
  multiply_weights(
      {.products = products, .rows = x.rows(), .x = x.data(), .execution = {.cpu = {.executor = context.executor}}});
  if (!context.times) return;
  context.times->product_seconds += layer_clock(*context.times) - start;
  for (const LinearProduct& product : products) {
    context.times->product_flops += 2.0 * static_cast<double>(x.elements()) * static_cast<double>(product.weight.rows);
    context.times->weight_bytes += static_cast<double>(bytes_with_scales(product.weight));
  }
}

void linear_backward(const Context& context, Node& x, Node& weight, Node* bias, Node& y) {
  const std::int64_t rows = x.rows(), in = x.width(), out = y.width();
  const float* grad_y = y.grad_data();
  multiply(context, {.rows = rows, .columns = in, .inner = out}, {.data = grad_y, .stride = out},
           {.data = weight.data(), .stride = in}, x.grad_data(), true);
  multiply(context, {.rows = out, .columns = in, .inner = rows},
           {.data = grad_y, .stride = out, .transpose = Transpose::yes}, {.data = x.data(), .stride = in},
           weight.grad_data(), true);
  if (!bias) return;
  sum_over_rows(context, rows, out, bias->grad_data(), [&](std::int64_t begin, std::int64_t end, float* sums) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t d = 0; d < out; ++d) sums[d] += grad_y[row * out + d];
    }
  });
}

}  // namespace

Value linear(Context& context, const Value& x, const Value& weight, const Value& bias) {
  Value y = make_output(*x, *weight, bias.get());
  if (!context.tape) {
    const LinearProduct product = product_of(*weight, bias.get(), *y);
    multiply_stored(context, *x, {&product, 1});
    return y;
  }
  const std::int64_t in = x->width();
  multiply(context, {.rows = x->rows(), .columns = weight->rows(), .inner = in}, {.data = x->data(), .stride = in},
           {.data = weight->data(), .stride = in, .transpose = Transpose::yes}, y->data());
  if (bias) add_bias(context, bias, *y);
  context.tape->record([&context, x, weight, bias, y] { linear_backward(context, *x, *weight, bias.get(), *y); });
  return y;
}

std::vector<Value> linear_together(Context& context, const Value& x, std::initializer_list<const Linear*> layers) {
  std::vector<Value> all;
  std::vector<LinearProduct> products;
  for (const Linear* layer : layers) {
    if (context.tape) {
      all.push_back((*layer)(context, x));
      continue;
    }
    all.push_back(make_output(*x, *layer->weight, layer->bias.get()));
    products.push_back(product_of(*layer->weight, layer->bias.get(), *all.back()));
  }
  for (std::size_t first = 0, last = 0; first < products.size(); first = last) {
    while (last < products.size() && share_x(products[first].weight, products[last].weight)) ++last;
    multiply_stored(context, *x, std::span(products).subspan(first, last - first));
  }
  return all;
}

Linear::Linear(std::int64_t out, std::int64_t in, bool with_bias, WeightMemory memory)
    : weight(make_weight(out, in, memory)), bias(with_bias ? make_value({out}) : nullptr) {}

void Linear::collect(Parameters& into, const std::string& name) const {
  into.push_back({name + ".weight", weight});
  if (bias) into.push_back({name + ".bias", bias});
}

}  // namespace rootdk
