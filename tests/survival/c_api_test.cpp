// The C ABI: ROOTDK_OUT_OF_MEMORY with a message, and no exception into the caller or its threads.

#include "rootdk/c_api.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "c_api/c_tensor.h"
#include "survival/c_status.h"
#include "survival/survive.h"

namespace rootdk::test {
namespace {

// A host's pool, in which an exception of a task would end the program.
void host_parallel_for(void*, int64_t count, rootdk_task task, void* context) noexcept {
  for (int64_t i = count; i-- > 0;) task(context, i);
}

rootdk_execution host_execution(const char* target) {
  rootdk_execution execution;
  rootdk_execution_init(&execution);
  execution.parallel_for = host_parallel_for;
  execution.parallel_threads = 3;
  execution.target = target;
  return execution;
}

struct Problem {
  Tensor q = wave({1, 4, 6, 16}, 0.1f), k = wave({1, 2, 20, 16}, 0.2f), v = wave({1, 2, 20, 16}, 0.3f);
  Tensor grad_out = wave({1, 4, 6, 16}, 0.4f);
  rootdk_tensor cq = c_tensor(q), ck = c_tensor(k), cv = c_tensor(v), cgrad_out = c_tensor(grad_out);
};

TEST(SurvivesCApi, Attention) {
  const Problem p;
  for (const char* target : {"", "reference"}) {
    const rootdk_execution execution = host_execution(target);
    expect_survives("rootdk_attention", computes([&] {
                      Tensor out(DType::f32, {1, 4, 6, 16});
                      const rootdk_tensor cout = c_tensor(out);
                      check(rootdk_attention(&p.cq, &p.ck, &p.cv, &cout, nullptr, nullptr, &execution));
                      Bits bits;
                      bits.add(out);
                      return bits;
                    }));
  }
}

TEST(SurvivesCApi, AttentionBackward) {
  const Problem p;
  Tensor out(DType::f32, {1, 4, 6, 16}), lse(DType::f32, {1, 4, 6});
  const rootdk_tensor cout = c_tensor(out), clse = c_tensor(lse);
  rootdk_attention_stats stats;
  rootdk_attention_stats_init(&stats);
  stats.lse = &clse;
  ASSERT_EQ(ROOTDK_OK, rootdk_attention(&p.cq, &p.ck, &p.cv, &cout, nullptr, &stats, nullptr));
  rootdk_attention_saved saved;
  rootdk_attention_saved_init(&saved);
  saved.q = &p.cq, saved.k = &p.ck, saved.v = &p.cv, saved.out = &cout, saved.lse = &clse;
  rootdk_attention_upstream upstream;
  rootdk_attention_upstream_init(&upstream);
  upstream.out = &p.cgrad_out;
  for (const char* target : {"", "reference"}) {
    const rootdk_execution execution = host_execution(target);
    expect_survives("rootdk_attention_backward", computes([&] {
                      Tensor q(DType::f32, {1, 4, 6, 16}), k(DType::f32, {1, 2, 20, 16}), v(DType::f32, {1, 2, 20, 16});
                      const rootdk_tensor cq = c_tensor(q), ck = c_tensor(k), cv = c_tensor(v);
                      rootdk_attention_gradients gradients;
                      rootdk_attention_gradients_init(&gradients);
                      gradients.q = &cq, gradients.k = &ck, gradients.v = &cv;
                      check(rootdk_attention_backward(&saved, &upstream, &gradients, nullptr, &execution));
                      Bits bits;
                      for (const Tensor* tensor : {&q, &k, &v}) bits.add(*tensor);
                      return bits;
                    }));
  }
}

// An explanation has no status: it says in its text that memory ran out.
TEST(SurvivesCApi, Explanation) {
  const Problem p;
  Tensor out(DType::f32, {1, 4, 6, 16});
  const rootdk_tensor cout = c_tensor(out);
  expect_survives("rootdk_explain", computes([&] {
                    const char* text = rootdk_explain(&p.cq, &p.ck, &p.cv, &cout, nullptr, nullptr, nullptr);
                    if (std::strstr(text, "\"error\": \"out of memory\"")) throw std::bad_alloc();
                    Bits bits;
                    bits.add(std::string_view(text));
                    return bits;
                  }));
}

// A cache behind its handle: lengths and pages.
class HandleSubject final : public Subject {
 public:
  HandleSubject() {
    rootdk_kv_cache_config config;
    rootdk_kv_cache_config_init(&config);
    config.kv_heads = 2, config.head_dim = 16, config.page_size = 16, config.pages = 8;
    rootdk_kv_cache* made = nullptr;
    check(rootdk_kv_cache_create(&config, &made));
    cache_.reset(made);
    check(rootdk_kv_open(cache_.get(), &first_));
    append(10);
    check(rootdk_kv_fork(cache_.get(), first_, -1, &second_));
  }

  void call() override {
    append(20);
    appended_ = true;
  }
  Bits kept() const override {
    rootdk_kv_usage usage{};
    check(rootdk_kv_usage_of(cache_.get(), &usage));
    int64_t length = 0;
    check(rootdk_kv_length(cache_.get(), first_, 0, &length));
    Bits bits;
    for (const int64_t number : {usage.sequences, usage.free_pages, usage.shared_pages, length}) bits.add(number);
    bits.add(appended_);
    return bits;
  }
  Bits result() const override {
    const Tensor q = wave({1, 4, 20, 16}, 0.5f);
    Tensor out(DType::f32, {1, 4, 20, 16});
    const rootdk_tensor cq = c_tensor(q), cout = c_tensor(out);
    const rootdk_kv_step step = {first_, 20, -1};
    check(rootdk_kv_attend(cache_.get(), &cq, &cout, &step, 1, nullptr, nullptr, nullptr));
    Bits bits = kept();
    bits.add(out);
    return bits;
  }

 private:
  void append(int64_t tokens) {
    const rootdk_tensor k = c_tensor(rows_);
    rootdk_tensor part = k;
    part.shape[2] = tokens;
    rootdk_rope_params rope;
    rootdk_rope_params_init(&rope);
    const rootdk_kv_step step = {first_, tokens, -1};
    check(rootdk_kv_append(cache_.get(), &part, &part, &step, 1, 0, &rope, nullptr));
  }

  Tensor rows_ = wave({1, 2, 20, 16}, 0.3f);
  struct Destroy {
    void operator()(rootdk_kv_cache* cache) const { rootdk_kv_cache_destroy(cache); }
  };
  std::unique_ptr<rootdk_kv_cache, Destroy> cache_;
  int64_t first_ = -1, second_ = -1;
  bool appended_ = false;
};

TEST(SurvivesCApi, KvAppend) {
  expect_survives("rootdk_kv_append", [] { return std::make_unique<HandleSubject>(); });
}

TEST(SurvivesCApi, KvCreateForkAndAttend) {
  expect_survives("rootdk_kv_*", computes([] {
                    const HandleSubject subject;
                    return subject.kept();
                  }));
}

TEST(SurvivesCApi, Positions) {
  const Tensor x = wave({1, 2, 3, 8}, 0.3f);
  const rootdk_tensor cx = c_tensor(x);
  expect_survives("rootdk_rope", computes([&] {
                    Tensor out(DType::f32, {1, 2, 3, 8});
                    const rootdk_tensor cout = c_tensor(out);
                    check(rootdk_rope(&cx, &cout, nullptr, nullptr));
                    Bits bits;
                    bits.add(out);
                    return bits;
                  }));
}

// A wrong argument while there is no memory for its message: an error of one kind or the other, and no end of the
// program.
TEST(SurvivesCApi, ErrorsWithoutMemoryForTheirMessage) {
  const Problem p;
  bool failed = true;
  for (std::int64_t n = 1; failed; ++n) {
    rootdk_status status = ROOTDK_OK;
    {
      const FailingAllocation failing(n, Scarcity::for_good);
      status = rootdk_attention(&p.cq, &p.ck, nullptr, &p.cgrad_out, nullptr, nullptr, nullptr);
      failed = FailingAllocation::happened();
    }
    EXPECT_NE(status, ROOTDK_OK);
    EXPECT_STRNE(rootdk_last_error(), "");
    if (!failed) {
      EXPECT_STREQ(rootdk_last_error(), "attention: v is not given");
    }
  }
}

TEST(SurvivesCApi, LongMessagesLoseTheirEnd) {
  std::string text;
  while (text.size() < 100000) text += "größer ";
  rootdk_set_last_error(text.c_str());
  const std::string kept = rootdk_last_error();
  EXPECT_GT(kept.size(), 4000u);
  EXPECT_LT(kept.size(), 4096u);
  EXPECT_EQ(kept, text.substr(0, kept.size()));
  EXPECT_NE(static_cast<unsigned char>(text[kept.size()]) & 0xC0, 0x80);  // a whole character follows
  rootdk_set_last_error(nullptr);
  EXPECT_STREQ(rootdk_last_error(), "");
}

}  // namespace
}  // namespace rootdk::test
