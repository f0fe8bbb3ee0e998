#include "lab/claim.h"
#include "lab/claims/claims.h"

namespace rootdk::lab {

std::string_view name_of(Relation relation) {
  switch (relation) {
    case Relation::equal: return "equal";
    case Relation::at_least: return "at least";
    case Relation::at_most: return "at most";
  }
  return "unknown";
}

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::holds: return "holds";
    case Verdict::holds_with_a_correction: return "holds with a correction";
    case Verdict::does_not_hold: return "does not hold";
  }
  return "unknown";
}

const std::vector<Claim>& catalogue() {
  // Number, text, formula, experiment, and about how many seconds it takes in full and quick.
  static const std::vector<Claim> claims = {
      {1, "The variance of q.k is d_k", R"(\operatorname{Var}(q \cdot k) = d_k)", variance_of_scores, 4, 0.5},
      {2, "Scores range over about +- 2 sqrt(d_k): 8, 16, 32, 45", R"(|q \cdot k| \lesssim 2\sqrt{d_k})",
       range_of_scores, 1, 0.1},
      {3, "softmax[25, 2, -3] is about [1, 0, 0]", R"(\operatorname{softmax}(25, 2, -3))", saturated_softmax, 0.05,
       0.05},
      {4, "Dividing by sqrt(d_k) makes the variance 1, dividing by d_k makes it 1 / d_k",
       R"(\operatorname{Var}(q \cdot k / c) = d_k / c^2)", variance_after_scaling, 3, 0.4},
      {5, "Unscaled attention saturates as d_k grows", R"(P(\max_j p_j > 0.9))", saturation_over_head_dim, 10, 1.3},
      {6, "1 / sqrt(d_k) keeps the softmax healthy, 1 / d_k and cosine make it flat", R"(H \to \ln n - \tfrac12)",
       entropy_under_scales, 2, 0.2},
      {7, "Gradients vanish through a saturated softmax", R"(\partial p / \partial s = p (1 - p))", vanishing_gradients,
       8, 1},
      {8, "Training falls apart without scaling", R"(\text{accuracy over learning rate})", training_without_scale, 40,
       3},
      {9, "Logits explode", R"(\max_{ij} s_{ij} \text{ over steps})", exploding_logits, 20, 6},
      {10, "Temperature 0.1 to 0.5 is nearly one-hot, above 2 nearly uniform",
       R"(\frac{dH}{d \ln(1/\tau)} = -\operatorname{Var}_p(s) / \tau^2)", temperature_sharpens, 0.3, 0.1},
      {11, "W_Q = W_K makes attention symmetric", R"(s_{ij} = s_{ji})", shared_projection_symmetry, 0.05, 0.05},
      {12, "Self-attention is permutation equivariant", R"(f(Px) = P f(x))", permutation_equivariance, 0.05, 0.05},
      {13, "RoPE, ALiBi and T5 biases see only distance", R"(s_{i+t, j+t} = s_{ij})", positions_see_distance, 0.05,
       0.05},
      {14, "Rows sum to 1, columns do not", R"(\sum_j p_{ij} = 1)", rows_sum_to_one, 0.05, 0.05},
      {15, "Dropout on the weights keeps their mean", R"(E[\tilde p] = p)", dropout_keeps_the_mean, 0.05, 0.05},
      {16, "Heads keep the cost: heads x d_k = d_model", R"(4 n^2 \, h \, d_k = 4 n^2 \, d_{model})",
       heads_keep_the_cost, 5, 1.3},
      {17, "Scale by sqrt(d_k), not sqrt(d_model)",
       R"(\operatorname{Var}(q \cdot k / \sqrt{d_{model}}) = d_k / d_{model})", scale_by_head_dim, 3, 0.4},
      {18, "Additive attention is bounded", R"(|a \cdot \tanh(q + k)| \le |a|_1)", additive_is_bounded, 0.2, 0.1},
      {19, "Cosine similarity makes the softmax flat", R"(p \le 1 / (1 + (n-1) e^{-2g}))", cosine_is_flat, 0.05, 0.05},
      {20, "Flash attention: O(n) memory, 2 to 4 times faster than the naive way", R"(O(n) \text{ against } O(n^2))",
       flash_attention, 10, 4},
      {21, "A KV cache avoids recomputing", R"(\text{cost of step } t)", kv_cache_avoids_recomputing, 0.6, 0.2},
      {22, "Attention is O(n^2), feed-forward O(n)", R"(4 n^2 d \text{ against } 16 n d^2)", quadratic_and_linear, 8,
       2},
      {23, "W_O mixes the heads", R"([h_1; \dots; h_H] \, W_O)", output_projection_mixes, 0.05, 0.05},
      {24, "Cosine needs extra norm computations, scaling is one division", R"(\frac{q \cdot k}{|q| |k|})",
       cosine_costs_norms, 2, 0.3},
      {25, "Small d_k is flat, moderate balanced, large sharp", R"(E \max_j p_j)", small_and_large_head_dim, 8, 1},
      {26, "Attention routes, feed-forward transforms, a block needs both", R"(\text{accuracy})", route_and_transform,
       3, 1.5},
      {27, "Separate W_Q and W_K let A attend to B without B attending to A", R"(s_{ij} \ne s_{ji})",
       separate_projections, 1, 0.4},
  };
  return claims;
}

}  // namespace rootdk::lab
