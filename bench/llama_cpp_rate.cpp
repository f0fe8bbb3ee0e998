// The rate of llama.cpp on a stored model, for bench/compare_llama_cpp.py, which compiles this against llama.cpp's
// libraries: one call of `tokens` new tokens for each of `sequences` sequences, behind 16 tokens, as `rootdk bench
// generate` measures it.
//
//   llama_cpp_rate MODEL.gguf THREADS SEQUENCES TOKENS REPEAT   prints seconds of each call
//
// One thread is timed by the processor's clock, several by the wall's, as rootdk times them.

#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int kContext = 16;

double now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void add_token(llama_batch& batch, int sequence, int position) {
  const int i = batch.n_tokens++;
  batch.token[i] = (sequence * 31 + position * 7) % 32000;
  batch.pos[i] = position;
  batch.n_seq_id[i] = 1;
  batch.seq_id[i][0] = sequence;
  batch.logits[i] = 0;
}

// Tokens [from, from + count) of every sequence, with the logits of the last ones.
bool decode(llama_context* context, llama_batch& batch, int sequences, int from, int count) {
  batch.n_tokens = 0;
  for (int s = 0; s < sequences; ++s) {
    for (int t = 0; t < count; ++t) add_token(batch, s, from + t);
    batch.logits[batch.n_tokens - 1] = 1;
  }
  const bool done = llama_decode(context, batch) == 0;
  llama_synchronize(context);
  return done;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return std::fputs("llama_cpp_rate MODEL.gguf THREADS SEQUENCES TOKENS REPEAT\n", stderr), 2;
  const int threads = std::atoi(argv[2]), sequences = std::atoi(argv[3]), tokens = std::atoi(argv[4]);
  const int repeat = std::atoi(argv[5]), batch_tokens = sequences * (tokens > kContext ? tokens : kContext);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return std::fprintf(stderr, "llama_cpp_rate: cannot load %s\n", argv[1]), 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(sequences * (kContext + tokens + 256));
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(batch_tokens);
  params.n_seq_max = static_cast<uint32_t>(sequences);
  params.n_threads = params.n_threads_batch = threads;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) return std::fputs("llama_cpp_rate: no context\n", stderr), 1;
  llama_batch batch = llama_batch_init(batch_tokens, 0, 1);
  bool fine = decode(context, batch, sequences, 0, kContext);
  for (int i = -1; fine && i < repeat; ++i) {  // the first call warms up
    const double begin = now(threads);
    fine = decode(context, batch, sequences, kContext, tokens);
    const double seconds = now(threads) - begin;
    if (i >= 0) std::printf("%.6f\n", seconds);
    for (int s = 0; s < sequences; ++s) llama_memory_seq_rm(llama_get_memory(context), s, kContext, -1);
  }
  llama_batch_free(batch);
  llama_free(context);
  llama_model_free(model);
  return fine ? 0 : 1;
}
