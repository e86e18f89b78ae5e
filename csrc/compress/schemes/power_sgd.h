// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): each matrix M as P Q of
// low rank, by one step of power iteration from the last step's Q. Two
// all-reduces a bucket, first of P = M Q' and of everything that is not worth
// a factorisation, then of Q = P' M, once P's columns are orthonormal.
#pragma once

#include <map>
#include <vector>

#include "compress/schemes/scheme.h"
#include "compress/scratch.h"

namespace commprof::compress {

class PowerSgd : public Scheme {
 public:
  PowerSgd(int rank, uint64_t seed);

  uint32_t k(size_t n) const override; // the rank
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

  void save(std::vector<ParameterState>& state) const override;
  bool load(const ParameterState& state) override;
  void clear() override;

 private:
  struct Matrix {
    uint32_t parameter = 0;
    size_t offset = 0; // in the bucket, in values
    size_t rows = 0;
    size_t cols = 0;
    int rank = 0; // at most both dimensions
    size_t p = 0; // where its factors begin among all factors
    size_t q = 0;
  };
  struct Range { // of values that are sent as they are
    size_t offset = 0;
    size_t count = 0;
    size_t raw = 0; // where they lie in the first all-reduce
  };
  // First all-reduce: raw values, then all P. Second: all Q.
  struct Plan {
    std::vector<Matrix> matrices;
    std::vector<Range> ranges;
    size_t raw = 0; // values in all
    size_t p = 0;
    size_t q = 0;
  };

  Plan planOf(std::span<const Slot> slots, size_t n) const;
  void project(const Job& job, const Plan& plan, float* residual);
  void keep(const Plan& plan, Sent& sent) const;
  void decode(const Job& job, const Plan& plan, float* residual);
  std::vector<float>& startOf(const Matrix& matrix, uint64_t step);
  void warmStart(const Matrix& matrix, const float* q, uint64_t step);
  void fillRandomly(const Matrix& matrix, uint64_t step, int row, float* q);

  int rank_;
  uint64_t seed_;
  std::map<uint32_t, std::vector<float>> q_; // rank x cols, by parameter
  Scratch first_; // raw values and P
  Scratch second_; // Q
  Scratch local_; // Q of this rank alone
  Scratch kept_raw_; // raw values of this rank alone
  Scratch no_residual_;
};

} // namespace commprof::compress
