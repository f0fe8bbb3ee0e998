#include "survival/survive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <new>
#include <typeinfo>

namespace rootdk::test {
namespace {

enum class Outcome { succeeded, out_of_memory, other_error };

class Attempts {
 public:
  Attempts(const std::string& name, const MakeSubject& make, const SurvivalOptions& options)
      : name_(name), make_(make), options_(options) {}

  std::int64_t run(Scarcity scarcity) {
    std::int64_t failures = 0;
    for (std::int64_t n = 1;; n = next(n)) {
      const std::unique_ptr<Subject> subject = make_();
      const Bits before = subject->kept();
      bool failed = false;
      const Outcome outcome = attempt(*subject, n, scarcity, failed);
      if (!failed) {
        EXPECT_EQ(outcome, Outcome::succeeded) << where(n, scarcity);
        if (outcome == Outcome::succeeded) check_result(*subject, n, scarcity);
        return failures;
      }
      ++failures;
      EXPECT_NE(outcome, Outcome::other_error) << where(n, scarcity) << ": " << error_;
      if (outcome != Outcome::succeeded) {
        EXPECT_TRUE(subject->kept() == before) << where(n, scarcity) << ": a call that failed has changed something";
        subject->call();
      }
      check_result(*subject, n, scarcity);
      if (testing::Test::HasFailure()) return failures;  // one message is enough
    }
  }

  // What a call leaves behind for later calls is there before the count begins.
  void expect() { expected_ = of_a_plain_call(); }

  Bits of_a_plain_call() {
    const std::unique_ptr<Subject> subject = make_();
    subject->call();
    return subject->result();
  }

 private:
  std::int64_t next(std::int64_t n) const {
    if (n < options_.one_by_one) return n + 1;
    return n + std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(n) * options_.growth));
  }

  Outcome attempt(Subject& subject, std::int64_t n, Scarcity scarcity, bool& failed) {
    std::exception_ptr error;
    {
      const FailingAllocation failing(n, scarcity);
      try {
        subject.call();
      } catch (...) {
        error = std::current_exception();
      }
      failed = FailingAllocation::happened();
    }
    if (!error) return Outcome::succeeded;
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      return Outcome::out_of_memory;
    } catch (const std::exception& other) {
      error_ = std::string(typeid(other).name()) + ": " + other.what();
    } catch (...) {
      error_ = "an exception of unknown type";
    }
    return Outcome::other_error;
  }

  void check_result(const Subject& subject, std::int64_t n, Scarcity scarcity) {
    EXPECT_TRUE(subject.result() == expected_) << where(n, scarcity) << ": the result is not that of a plain call";
  }

  std::string where(std::int64_t n, Scarcity scarcity) const {
    return name_ + ", allocation " + std::to_string(n) + (scarcity == Scarcity::once ? "" : " and all after it");
  }

  const std::string& name_;
  const MakeSubject& make_;
  const SurvivalOptions& options_;
  Bits expected_;
  std::string error_;
};

class Computation final : public Subject {
 public:
  explicit Computation(std::function<Bits()> call) : call_(std::move(call)) {}
  void call() override { result_ = call_(); }
  Bits result() const override { return result_; }

 private:
  std::function<Bits()> call_;
  Bits result_;
};

}  // namespace

MakeSubject computes(std::function<Bits()> call) {
  return [call = std::move(call)] { return std::make_unique<Computation>(call); };
}

std::int64_t expect_survives(const std::string& name, const MakeSubject& make, const SurvivalOptions& options) {
  Attempts attempts(name, make, options);
  std::int64_t failures = 0;
  if (options.cold) {
    // Nothing is known about the result before a first call, and that is the one that fails.
    for (std::int64_t n = 1;; ++n) {
      const std::unique_ptr<Subject> subject = make();
      const FailingAllocation failing(n, Scarcity::once);
      try {
        subject->call();
      } catch (const std::bad_alloc&) {
      }
      if (!FailingAllocation::happened()) break;
      ++failures;
    }
  }
  attempts.expect();
  for (const Scarcity scarcity : {Scarcity::once, Scarcity::for_good}) {
    const std::int64_t before = live_allocations();
    failures += attempts.run(scarcity);
    EXPECT_EQ(live_allocations(), before) << name << " leaks, or frees too much";
  }
  EXPECT_GT(failures, 0) << name << " takes no memory: nothing was tried";
  return failures;
}

}  // namespace rootdk::test
