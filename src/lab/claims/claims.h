#pragma once

// One function a claim; the number is its place in the catalogue.

#include "lab/claim.h"

namespace rootdk::lab {

Finding variance_of_scores(const Bench&);           // 1
Finding range_of_scores(const Bench&);              // 2
Finding saturated_softmax(const Bench&);            // 3
Finding variance_after_scaling(const Bench&);       // 4
Finding saturation_over_head_dim(const Bench&);     // 5
Finding entropy_under_scales(const Bench&);         // 6
Finding vanishing_gradients(const Bench&);          // 7
Finding training_without_scale(const Bench&);       // 8
Finding exploding_logits(const Bench&);             // 9
Finding temperature_sharpens(const Bench&);         // 10
Finding shared_projection_symmetry(const Bench&);   // 11
Finding permutation_equivariance(const Bench&);     // 12
Finding positions_see_distance(const Bench&);       // 13
Finding rows_sum_to_one(const Bench&);              // 14
Finding dropout_keeps_the_mean(const Bench&);       // 15
Finding heads_keep_the_cost(const Bench&);          // 16
Finding scale_by_head_dim(const Bench&);            // 17
Finding additive_is_bounded(const Bench&);          // 18
Finding cosine_is_flat(const Bench&);               // 19
Finding flash_attention(const Bench&);              // 20
Finding kv_cache_avoids_recomputing(const Bench&);  // 21
Finding quadratic_and_linear(const Bench&);         // 22
Finding output_projection_mixes(const Bench&);      // 23
Finding cosine_costs_norms(const Bench&);           // 24
Finding small_and_large_head_dim(const Bench&);     // 25
Finding route_and_transform(const Bench&);          // 26
Finding separate_projections(const Bench&);         // 27

}  // namespace rootdk::lab
