#pragma once

#include <string>

namespace rootdk::lab {

// The parts of the report that explain: each a section of HTML, its numbers computed by the library as the page is
// made.
std::string lesson_why_square_root();     // the derivation of Var(q.k) = d_k, with numbers to follow by hand
std::string lesson_three_scores();        // scaled dot product, additive and cosine side by side
std::string lesson_position_encodings();  // sinusoidal, RoPE, T5 bias, ALiBi as pictures
std::string lesson_attention_matrix();    // an n x n matrix with its row and column sums
std::string lesson_data_flow();           // scaled dot-product and multi-head attention drawn with real shapes

}  // namespace rootdk::lab
